"""Who owns what: with cyclic collection off, everything goes by reference counting, however deep."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tensorstash.reference import Tensor, saved_tensors_hooks, tensor
from tensorstash.testing.harness import reference_counting_only

DEEPER_THAN_PYTHON, DEEPER_THAN_C = 2_000, 12_000
"""Links that would exceed the limit of recursion, and links whose finalizers would exceed the stack."""


@pytest.mark.parametrize("link", ["operation", "view", "saved output", "packed"])
def test_deep_chain_is_dropped_and_differentiated_without_deep_recursion(link: str) -> None:
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "operation": lambda y: y + 1.0,
        "view": lambda y: y[:],
        "saved output": lambda y: y.relu(),
        "packed": lambda y: y.relu(),
    }
    x = tensor([1.0], requires_grad=True)

    def chain(length: int) -> Tensor:
        y = x
        for _ in range(length):
            y = steps[link](y)
        return y

    hooks = saved_tensors_hooks(lambda t: [t], lambda p: p[0]) if link == "packed" else nullcontext()
    with reference_counting_only(), hooks:
        y = chain(DEEPER_THAN_PYTHON)
        y.backward()
        assert x.grad.item() == 1.0
        node = weakref.ref(x.node)
        y = chain(DEEPER_THAN_C)
        del y
    assert node() is None
