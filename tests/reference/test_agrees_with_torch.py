"""Values and derivatives to second order of every operation, and of compositions, against PyTorch."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tensorstash.reference import Tensor, grad, ops, tensor
from tensorstash.reference.autograd.engine import _order
from tensorstash.reference.autograd.primitive import Operation

ROWS = [0, 2, 2, 1]
Function = Callable[..., Any]


def transposed(x: Any) -> Any:
    return x.T if isinstance(x, Tensor) else x.mT


def squared(x: Any) -> Any:
    return x * x


def in_place(x: Any, y: Any) -> Any:
    a = x * 2
    a.mul_(y).add_(a.clone() * y)
    return a * a.sum()


CASES: dict[str, tuple[Function, *tuple[tuple[int, ...], ...]]] = {
    "add": (lambda a, b: a + b + 2, (2, 3), (3,)),
    "sub": (lambda a, b: 1 - (a - b), (2, 1), (1, 3)),
    "mul": (lambda a, b: a * b * 3, (2, 3), (3,)),
    "mul by itself": (lambda a: a * a, (3,)),
    "exp": (lambda a: a.exp(), (3,)),
    "tanh": (lambda a: a.tanh(), (3,)),
    "relu": (lambda a: ((a - 1) * a * a).relu(), (6,)),
    "clone": (lambda a: squared(transposed(a).clone()), (2, 3)),
    "contiguous": (lambda a: squared(transposed(a).contiguous()), (2, 3)),
    "sum": (lambda a: squared(a.sum()), (2, 3)),
    "matmul": (lambda a, b: a @ b, (2, 3), (3, 2)),
    "matmul batched": (lambda a, b: a @ b, (2, 1, 2, 2), (3, 2, 1)),
    "transpose": (lambda a: squared(transposed(a)), (2, 2, 3)),
    "expand": (lambda a: squared(a.expand(2, 3, 1)), (3, 1)),
    "reshape": (lambda a: squared(transposed(a).reshape(-1, 2)), (2, 2, 2)),
    "index": (lambda a: squared(a[1, :, None, ::2]) + a[-1, 0, 0], (2, 2, 3)),
    "softmax": (lambda a: a.softmax(-1), (2, 3)),
    "softmax over columns": (lambda a: a.softmax(0), (2, 3)),
    "in place": (in_place, (2, 3), (3,)),
    "attention": (lambda q, k, v: (q @ transposed(k) * 0.5).softmax(-1) @ v.tanh(), (3, 2), (3, 2), (3, 2)),
    "third of a composition": (lambda a: (a.tanh() * a).sum().exp(), (2,)),
}
SPELLED_TWICE: dict[str, tuple[Function, Function, *tuple[tuple[int, ...], ...]]] = {
    "gelu": (ops.gelu, lambda a: torch.nn.functional.gelu(a, approximate="tanh"), (4,)),
    "cast": (lambda a: squared(a.astype("float32").astype("float64")), lambda a: squared(a.float().double()), (3,)),
    "to": (lambda a: (a.to("sim:0") * a.to("sim:0")).to("cpu"), lambda a: a * a, (3,)),
    "sum_to": (lambda a: squared(a.sum_to(shape=(1, 3))), lambda a: squared(a.sum_to_size(1, 3)), (2, 2, 3)),
    "rows": (lambda a: squared(a[tensor(ROWS)]), lambda a: squared(a[torch.tensor(ROWS)]), (3, 2)),
}
PAIRS = {**{name: (case[0], *case) for name, case in CASES.items()}, **SPELLED_TWICE}


def to_second_order(function: Function, leaves: Any, weight: Function, gradients: Function) -> tuple[list[Any], Any]:
    """Return a value and its first two derivatives, each weighted and summed, and the first gradients."""
    value = function(*leaves)
    first = gradients((value * weight(value)).sum(), leaves, True)
    total = (value * value).sum() + sum((g * g * weight(g)).sum() for g in first)
    return [value, *first, *gradients(total, leaves, False)], first


@cache
def evaluate(name: str) -> tuple[list[Any], list[Any], Any]:
    mine, theirs, *shapes = PAIRS[name]
    arrays = [np.random.default_rng(seed).uniform(0.5, 1.5, shape) for seed, shape in enumerate(shapes)]

    def weights(x: Any) -> Any:
        return np.linspace(1.0, 2.0, int(np.prod(x.shape))).reshape(x.shape)

    def ours(y: Any, xs: Any, again: bool) -> Any:
        found = grad(y, xs, create_graph=again)
        return [x * 0 if g is None else g for g, x in zip(found, xs, strict=True)]

    def torchs(y: Any, xs: Any, again: bool) -> Any:
        return torch.autograd.grad(y, xs, create_graph=again, allow_unused=True, materialize_grads=True)

    got, first = to_second_order(
        mine, [tensor(a, requires_grad=True) for a in arrays], lambda x: tensor(weights(x), device=x.device), ours
    )
    wanted, _ = to_second_order(
        theirs, [torch.tensor(a, requires_grad=True) for a in arrays], lambda x: torch.tensor(weights(x)), torchs
    )
    return got, wanted, first


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_derivatives_agree_to_second_order(name: str) -> None:
    got, wanted, _ = evaluate(name)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine.host_bits(), theirs.detach().numpy(), rtol=1e-6, atol=1e-9)


def test_every_operation_with_a_formula_is_compared() -> None:
    compared: set[str] = set()
    for name in PAIRS:
        got, _, first = evaluate(name)
        compared |= {node.name for y in (got[0], *first) if y.grad_fn is not None for node in _order(y.grad_fn)}
    differentiable = {x.__name__ for x in vars(ops).values() if isinstance(x, Operation) and x.formulas}
    assert len(differentiable) > 18
    assert differentiable - compared == {"restride"}, "only that has no gradient"
