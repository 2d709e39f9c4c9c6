"""The graph: what is saved, the walk back, and who owns what."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import reduce

import numpy as np
import pytest

from tensorstash.reference import Tensor, grad, saved_tensors_hooks, tensor
from tensorstash.testing.harness import reference_counting_only

WORKERS = 4
DEEPER_THAN_PYTHON, DEEPER_THAN_C = 1_200, 12_000
"""Links that would exceed the limit of recursion, and links whose finalizers would exceed the stack."""


def scalar(value: float) -> Tensor:
    return tensor(value, "float64", requires_grad=True)


def test_gradients_of_all_paths_and_of_repeated_backwards_add_up() -> None:
    x = scalar(3.0)
    y = x * x
    z = y * x + y
    z.backward(retain_graph=True)
    assert x.grad.item() == 33.0
    before = x.grad
    z.backward()
    assert x.grad.item() == 66.0
    assert x.grad is before
    nothing_saved = x + x
    nothing_saved.backward()
    nothing_saved.backward()
    assert x.grad.item() == 70.0
    assert grad(x * x, [x, scalar(3.0)])[1] is None


def test_threads_accumulate_into_a_shared_leaf_without_loss() -> None:
    x = tensor(np.zeros(1000), requires_grad=True)
    together = threading.Barrier(WORKERS)

    def accumulate(_: int) -> None:
        together.wait(30)
        for _ in range(100):
            (x * 1.0).sum().backward()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(accumulate, range(WORKERS)))
    assert set(x.grad.tolist()) == {100.0 * WORKERS}


@pytest.mark.parametrize("link", ["operation", "view", "saved output", "packed"])
def test_deep_chain_is_dropped_and_differentiated_without_deep_recursion(link: str) -> None:
    step: Callable[[Tensor], Tensor]
    step = {"operation": lambda y: y + 1.0, "view": lambda y: y[:]}.get(link, Tensor.relu)
    x = tensor([1.0], requires_grad=True)

    def chain(length: int) -> Tensor:
        return reduce(lambda y, _: step(y), range(length), x)

    hooks = saved_tensors_hooks(lambda t: [t], lambda p: p[0]) if link == "packed" else nullcontext()
    with reference_counting_only(), hooks:
        y = chain(DEEPER_THAN_PYTHON)
        y.backward()
        assert x.grad.item() == 1.0
        node = weakref.ref(x.node)
        y = chain(DEEPER_THAN_C)
        del y
    assert node() is None
