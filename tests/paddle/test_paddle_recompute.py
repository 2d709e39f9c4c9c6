"""``recompute``, reentrant and built on hooks, in every position relative to ours."""

from contextlib import ExitStack
from functools import partial

import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from paddle_cases import bits, gradients, leaf, noise

each_kind = pytest.mark.parametrize("reentrant", [True, False])


@pytest.fixture
def net():
    return paddle.nn.Sequential(
        paddle.nn.Linear(4, 8), paddle.nn.GELU(), paddle.nn.Dropout(0.5), paddle.nn.Linear(8, 4)
    )


def plainly(function, value):
    return function(value)


@each_kind
@pytest.mark.parametrize("position", ["around forward", "around both", "around backward", "inside"])
def test_gradients_are_bitwise_equal_and_nothing_is_left(net, pair, position, reentrant):
    def inside(value):
        with pair.hooks():
            return net(value)

    def run(position, recomputed):
        paddle.seed(3)
        x = leaf(noise(3, 4))
        net.clear_gradients()
        inner = x.t().t() * 1.5
        with ExitStack() as scopes:
            if position in ("around forward", "around both"):
                scopes.enter_context(pair.hooks())
            y = recomputed(inside if position == "inside" else net, inner)
            if position == "around forward":
                scopes.close()
            if position == "around backward":
                scopes.enter_context(pair.hooks())
            y.sum().backward()
        return [bits(x.grad), *(bits(parameter.grad) for parameter in net.parameters())]

    expected = run("around forward", plainly)
    pair.copied.clear()
    assert run(position, partial(recompute, use_reentrant=reentrant)) == expected
    assert bool(pair.copied) == (reentrant or position == "inside")  # the other kind shows nothing to hooks around it
    assert not pair.live


@each_kind
def test_several_blocks_one_after_the_other_and_inside_one_another(net, pair, reentrant):
    def program(outer, inner, x):
        return paddle.exp(outer(net, paddle.tanh(x))) * outer(net, inner(net, x))

    net[2].eval()
    again, once_more = (partial(recompute, use_reentrant=kind) for kind in (reentrant, True))
    expected = gradients(partial(program, plainly, plainly), [noise(3, 4)])
    assert gradients(partial(program, again, once_more), [noise(3, 4)], pair.hooks()) == expected
    assert not pair.live


def test_a_view_that_is_saved_in_a_recomputed_block_is_read_as_it_lies(pair):
    def transposed(value):
        return (value.t() * value.t()[:, 1:2]).exp() @ value

    again = partial(recompute, transposed, use_reentrant=False)
    assert gradients(again, [noise(3, 4)], pair.hooks()) == gradients(transposed, [noise(3, 4)])
