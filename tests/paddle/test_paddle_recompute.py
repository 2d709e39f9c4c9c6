"""``recompute``, reentrant and built on hooks, in every position relative to ours."""

from contextlib import nullcontext

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

    if position == "around forward":
        with scope():
            y = recomputed(net, inner)
        y.sum().backward()
    elif position == "around both":
        with scope():
            recomputed(net, inner).sum().backward()
    elif position == "around backward":
        y = recomputed(net, inner)
        with scope():
            y.sum().backward()
    else:
        recomputed(inside, inner).sum().backward()
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

    def train(hooked):
        paddle.seed(5)
        x = leaf(noise(3, 4))
        if hooked:
            with pair.hooks():
                y = paddle.exp(recompute(net, paddle.tanh(x), use_reentrant=reentrant)) * nested(x)
        else:
            y = paddle.exp(net(paddle.tanh(x))) * net(net(x))
        y.sum().backward()
        return bits(x.grad)

    net[2].eval()
    assert train(True) == train(False)
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


def test_recompute_on_another_thread_while_hooks_are_in_force(net, pair, in_a_thread):
    net[2].eval()

    def other():
        x = leaf(noise(3, 4))
        recompute(net, x * 1.0, use_reentrant=False).sum().backward()
        return bits(x.grad)

    with pair.hooks():
        found = in_a_thread(other)
    assert found == other()
    assert not pair.copied
