"""Programs that plain Paddle trains, and that a recipe must not break: NaN, and parameters that change meanwhile."""

from contextlib import nullcontext

import paddle
import pytest
from paddle.nn import functional as F  # noqa: N812

import tensorstash as ts

pytestmark = [
    pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning"),
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]

WIDTH, ROWS = 16, 24


def stash(policy):
    return ts.stash(policy, framework="paddle", min_bytes=1)


def bits_of_gradients(tensors):
    return [each.grad.numpy().tobytes() for each in tensors if each.grad is not None]


def embedding_changed_between_backwards(around):
    table, last = paddle.nn.Embedding(6, WIDTH), paddle.nn.Linear(WIDTH, WIDTH)
    with around:
        hidden = last(table(paddle.arange(8) % 6))
        first, second = hidden.square().sum(), hidden.sin().sum()
        del hidden
    first.backward(retain_graph=True)
    with paddle.no_grad():
        table.weight.scale_(2.0)
    second.backward()
    return [*table.parameters(), *last.parameters()]


def bias_of_a_sum_changed_before_backward(around):
    first, last = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, WIDTH)
    with around:
        loss = last(F.relu(first(paddle.randn([ROWS, WIDTH])) * 2.0 + first.bias)).square().sum()
    with paddle.no_grad():
        first.bias.scale_(2.0, bias=1.0)
    loss.backward()
    return [*first.parameters(), *last.parameters()]


PROGRAMS = [embedding_changed_between_backwards, bias_of_a_sum_changed_before_backward]


@pytest.mark.parametrize("policy", ["recompute", "recompute | disk_spill"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.replace("_", " "))
def test_a_parameter_that_autograd_does_not_need_may_change(program, policy):
    def gradients(around):
        paddle.seed(0)
        return bits_of_gradients(program(around))

    around = stash(policy)
    for _ in range(2):
        assert gradients(around) == gradients(nullcontext())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
@pytest.mark.parametrize("policy", ["recompute", "recompute | disk_spill"])
@pytest.mark.parametrize("norm", ["layer norm", "batch norm"])
def test_a_norm_of_nan_or_infinity_has_the_gradient_of_plain_paddle(norm, policy, value):
    def gradients(around, *, has_value):
        paddle.seed(0)
        layer = paddle.nn.LayerNorm(WIDTH) if norm == "layer norm" else paddle.nn.BatchNorm1D(WIDTH)
        last, x = paddle.nn.Linear(WIDTH, 4), paddle.randn([ROWS, WIDTH])
        if has_value:
            x[2, 5] = value
        x.stop_gradient = False
        with around:
            loss = last(F.silu(layer(F.relu(x * 1.0)))).sum()
        loss.backward()
        return bits_of_gradients([x, *layer.parameters(), *last.parameters()])

    around = stash(policy)
    for has_value in (False, True, False):
        assert gradients(around, has_value=has_value) == gradients(nullcontext(), has_value=has_value)
