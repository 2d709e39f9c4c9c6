"""Activations that are edited without a record under Paddle: the gradients of plain Paddle or a named error."""

from contextlib import nullcontext

import paddle
import pytest
from paddle.nn import functional as F  # noqa: N812

import tensorstash as ts
from tensorstash.errors import TensorStashError

pytestmark = [
    pytest.mark.filterwarnings("ignore::tensorstash.TensorStashWarning"),
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]

LAYERS, WIDTH, ROWS = 3, 16, 24


def stash(policy):
    return ts.stash(policy, framework="paddle", min_bytes=1)


def _no_grad_rows(z):
    with paddle.no_grad():
        z[5:7] = 0


def _no_grad_scaled(z):
    with paddle.no_grad():
        z.scale_(0.5)


def _no_grad_clipped(z):
    with paddle.no_grad():
        z.clip_(0.0, 0.1)


def _detached_rows(z):
    z.detach()[5:7] = 0


def _detached_scaled(z):
    z.detach().scale_(0.5)


def _set_value(z):
    z.set_value(z.numpy() * 0.5)


def _set_one_element(z):
    values = z.numpy()
    values[7, 3] += 1
    z.set_value(values)


EDITS = [
    _no_grad_rows, _no_grad_scaled, _no_grad_clipped, _detached_rows, _detached_scaled, _set_value, _set_one_element
]  # fmt: skip

OPERATIONS = {
    "mul": lambda u: u * u,
    "add": lambda u: u + F.silu(u),
    "silu": F.silu,
    "gelu": F.gelu,
    "sub": lambda u: u - u * u,
}


def bits_of_gradients(tensors):
    return [each.grad.numpy().tobytes() for each in tensors if each.grad is not None]


def gradients(around, operation, edit):
    """Return the gradients of some layers of a kind, one of which has its activation edited."""
    paddle.seed(0)
    layers = [paddle.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    h = paddle.randn([ROWS, WIDTH])
    with around:
        for number, layer in enumerate(layers):
            z = operation(layer(h))
            if edit is not None and number == 1:
                edit(z)
            h = F.sigmoid(z)
            del z
        loss = h.square().sum()
    loss.backward()
    return bits_of_gradients([weight for layer in layers for weight in layer.parameters()])


def attempt(around, operation, edit):
    try:
        return gradients(around, operation, edit)
    except (TensorStashError, RuntimeError, ValueError) as error:
        return error


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__.strip("_").replace("_", " "))
def test_an_edit_without_a_record_gives_the_gradient_of_plain_paddle_or_a_named_error(edit):
    recomputed = 0
    for row, (name, operation) in enumerate(OPERATIONS.items()):
        steps = (0, 0, 1, 1, 1, 1) if row % 2 else (1, 1, 1, 1)
        for policy in ("recompute", "recompute | disk_spill"):
            around = stash(policy)
            for is_edited in steps:
                change = edit if is_edited else None
                expected, found = attempt(nullcontext(), operation, change), attempt(around, operation, change)
                if isinstance(found, Exception) or isinstance(expected, Exception):
                    assert isinstance(found, TensorStashError), f"{name}, {policy}: {found!r}"
                else:
                    assert found == expected, f"{name}, {policy}: another gradient"
            assert isinstance(found, list) == isinstance(expected, list), f"{name}, {policy}: refused for ever: {found}"
            recomputed += len(around.stats().recomputed)
    assert recomputed >= len(OPERATIONS), "nothing was recomputed"


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
