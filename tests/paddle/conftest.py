"""A backend, a pair of hooks, and a check that every test leaves Paddle as it was."""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "3")

import paddle
import pytest
from paddle.base import core
from paddle_cases import alive, hooked, leaf

from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.testing.harness import reference_counting_only
from tests.frameworks.copying import CopyingPair


@pytest.fixture
def backend() -> PaddleBackend:
    return PaddleBackend()


@pytest.fixture
def pair(backend: PaddleBackend) -> CopyingPair:
    return CopyingPair(backend)


@pytest.fixture
def in_a_thread() -> Callable[[Callable[[], Any]], Any]:
    """Return what runs a function on a thread of its own, and returns what that returns."""

    def run(function: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function).result()

    return run


@pytest.fixture
def counting_only() -> Iterator[None]:
    """Switch the cyclic garbage collector off: what is freed is freed by reference counting."""
    with reference_counting_only():
        yield


@pytest.fixture(autouse=True, scope="module")
def paddle_is_found_as_it_is_left() -> None:
    """Free what failed steps of other files have left with Paddle, and what was set aside with it."""
    if alive():
        gc.unfreeze()
        _free_young()
        gc.freeze()


@pytest.fixture
def never_freed() -> None:
    """For a graph that Paddle never frees, hooks or not: nobody walks it, and a node has saved its output."""


@pytest.fixture(autouse=True)
def paddle_is_left_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves hooks, replaced functions or packed values behind, or gradient recording off."""
    paddle.seed(0)
    before = alive()
    yield
    _save_something()
    for _ in range(2):
        if alive() != before:
            _free_young()
    left = alive() - before if "never_freed" not in request.fixturenames else 0
    recording = paddle.is_grad_enabled()
    paddle.set_grad_enabled(True)
    paddle.base.framework._dygraph_tracer()._has_grad = True
    is_hooked = hooked()
    core.eager.reset_saved_tensors_hooks()
    assert recording, "gradient recording was left off"
    assert not is_hooked, "a pair of hooks was left in force"
    assert not left, f"{left} scopes are still alive, or something that was packed in them"


def _save_something() -> None:
    """Save a tensor: where threads were at work, that is when the hooks of the last one go."""
    with paddle.enable_grad():
        paddle.exp(leaf([1.0]))


def _free_young() -> None:
    """Collect garbage, and derive something: Paddle holds the graph of a ``paddle.grad`` that failed until the next."""
    x = leaf([1.0])
    with paddle.enable_grad():
        paddle.grad(x * 1.0, x)
    gc.collect()
