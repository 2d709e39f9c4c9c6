"""Who owns what: with cyclic collection off, everything goes by reference counting, however deep."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest

from tensorstash.reference import (
    PyLayer,
    Tensor,
    saved_tensors_hooks,
    tensor,
)

pytestmark = pytest.mark.usefixtures("no_cyclic_gc")


class Packed:
    """Stands in the graph for a tensor; counts the living."""

    living: ClassVar[weakref.WeakSet[Packed]] = weakref.WeakSet()

    def __init__(self, x: Tensor) -> None:
        self.bits, self.device = x.host_bits(), x.device
        self.living.add(self)


def hooks() -> saved_tensors_hooks:
    return saved_tensors_hooks(Packed, lambda p: tensor(p.bits, device=p.device))


class Saves(PyLayer):
    """Saves input, output and None, and keeps its raw output as an attribute besides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y, None)
        ctx.raw = y
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _, y, _ = ctx.saved_tensor()
        return g * y


def net(x: Tensor) -> Tensor:
    """Save inputs, own outputs and views; write in place, through a view too."""
    a = x * x
    a[0].mul_(x[1])
    a.add_(1.0)
    b = Saves.apply(a.softmax())
    return (b.exp().relu() * b.sigmoid()).reshape(-1).sum()


SCOPES: dict[str, Callable[[], Any]] = {
    "no hooks": nullcontext,
    "clone": lambda: saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()),
    "identity": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "packing": hooks,
}


def failing(x: Tensor) -> Tensor:
    class Fails(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ZeroDivisionError

    y: Tensor = Fails.apply(x)
    return y


DEEPER_THAN_PYTHON, DEEPER_THAN_C = 2_000, 12_000
"""Links that would exceed the limit of recursion, and links whose finalizers would exceed the stack."""


@pytest.mark.parametrize("link", ["operation", "view", "saved output", "packed"])
def test_deep_chain_is_dropped_and_differentiated_without_deep_recursion(link: str) -> None:
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "operation": lambda y: y + 1.0,
        "view": lambda y: y[...],
        "saved output": lambda y: y.relu(),
        "packed": lambda y: y.relu(),
    }
    x = tensor([1.0], requires_grad=True)

    def chain(length: int) -> Tensor:
        y = x
        for _ in range(length):
            y = steps[link](y)
        return y

    with saved_tensors_hooks(lambda t: [t], lambda p: p[0]) if link == "packed" else nullcontext():
        y = chain(DEEPER_THAN_PYTHON)
        y.backward()
        assert x.grad.item() == 1.0
        node = weakref.ref(x.edge.node)
        y = chain(DEEPER_THAN_C)
        del y
    assert node() is None
