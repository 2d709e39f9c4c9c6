"""``recompute``, reentrant and built on hooks, in every position relative to ours."""

from contextlib import ExitStack, nullcontext

import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from paddle_cases import bits, leaf, noise


@pytest.fixture
def net():
    return paddle.nn.Sequential(
        paddle.nn.Linear(4, 8), paddle.nn.GELU(), paddle.nn.Dropout(0.5), paddle.nn.Linear(8, 4)
    )


def run(net, position, scope, recomputed):
    """Gradients of the input and of every parameter."""
    paddle.seed(3)
    x = leaf(noise(3, 4))
    net.clear_gradients()
    inner = x.t().t() * 1.5

    def inside(value):
        with scope():
            return net(value)

    with ExitStack() as scopes:
        if position in ("around forward", "around both"):
            scopes.enter_context(scope())
        y = recomputed(inside if position == "inside" else net, inner)
        if position == "around forward":
            scopes.close()
        if position == "around backward":
            scopes.enter_context(scope())
        y.sum().backward()
    return [bits(x.grad), *(bits(parameter.grad) for parameter in net.parameters())]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("position", ["around forward", "around both", "around backward", "inside"])
def test_gradients_are_bitwise_equal_and_nothing_is_left(net, pair, position, reentrant):
    def recomputed(function, value):
        return recompute(function, value, use_reentrant=reentrant)

    expected = run(net, "around forward", pair.hooks, lambda function, value: function(value))
    pair.copied.clear()
    assert run(net, position, pair.hooks, recomputed) == expected
    sees_operations = reentrant or position == "inside"
    assert bool(pair.copied) == sees_operations
    assert not pair.live


@pytest.mark.parametrize("reentrant", [True, False])
def test_several_blocks_one_after_the_other_and_inside_one_another(net, pair, reentrant):
    def nested(value):
        return recompute(net, recompute(net, value, use_reentrant=True), use_reentrant=reentrant)

    def train(scope, once, twice):
        x = leaf(noise(3, 4))
        with scope:
            y = paddle.exp(once(paddle.tanh(x))) * twice(x)
        y.sum().backward()
        return bits(x.grad)

    net[2].eval()
    plain = train(nullcontext(), net, lambda value: net(net(value)))
    assert train(pair.hooks(), lambda value: recompute(net, value, use_reentrant=reentrant), nested) == plain
    assert not pair.live


def test_a_view_that_is_saved_in_a_recomputed_block_is_read_as_it_lies(pair):
    def transposed(value):
        return (value.t() * value.t()[:, 1:2]).exp() @ value

    def gradient(hooks, function):
        x = leaf(noise(3, 4))
        with hooks:
            function(x * 1.5).sum().backward()
        return bits(x.grad)

    expected = gradient(nullcontext(), transposed)
    assert gradient(pair.hooks(), lambda value: recompute(transposed, value, use_reentrant=False)) == expected
