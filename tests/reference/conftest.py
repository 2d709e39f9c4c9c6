"""Shared fixtures of the reference engine's tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tensorstash.reference import MemorySpace, Tensor, memory, tensor


@pytest.fixture
def no_cyclic_gc() -> Iterator[None]:
    """Leave freeing to reference counting alone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def sim() -> Iterator[MemorySpace]:
    """The simulated accelerator, empty before and after."""
    space = memory("sim:0")
    assert space.allocated_bytes == 0
    space.reset_peak()
    yield space
    space.capacity_bytes = None
    assert space.allocated_bytes == 0


@pytest.fixture
def leaf() -> Callable[..., Tensor]:
    """Make a float64 leaf of a shape from a seed."""

    def make(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0, device: str = "cpu") -> Tensor:
        values = np.random.default_rng(seed).uniform(low, high, shape)
        return tensor(values, device=device, requires_grad=True)

    return make
