"""Shared fixtures of the reference engine's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorstash.reference import Generator, MemorySpace, Tensor, memory, nn, ops


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
    """The simulated accelerator, which the test must leave as it found it."""
    space = memory("sim:0")
    before = space.allocated_bytes
    space.reset_peak()
    yield space
    space.capacity_bytes = None
    assert space.allocated_bytes == before


@pytest.fixture(scope="session")
def language_model() -> tuple[nn.TransformerLM, np.ndarray]:
    """A float64 transformer and the (batch, tokens) indices to run it on."""
    model = nn.TransformerLM(23, 10, 16, 4, 2, generator=Generator(0), dtype="float64")
    return model, np.random.default_rng(1).integers(0, 23, (3, 10))


@pytest.fixture(scope="session")
def conv_net() -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """A float64 convolutional network, the images to run it on and their labels."""
    generator = Generator(0)
    double: dict[str, Any] = {"generator": generator, "dtype": "float64"}

    class ConvNet(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, **double)
            self.norm = nn.BatchNorm(4, dtype="float64")
            self.second = nn.Conv2d(4, 6, 2, **double)
            self.head = nn.Linear(6, 5, **double)

        def forward(self, x: Tensor) -> Tensor:
            x = ops.max_pool2d(self.norm(self.first(x)).relu(), 2)
            x = ops.gelu(self.second(x))
            return self.head(ops.avg_pool2d(x, 3).reshape(x.shape[0], -1))

    rng = np.random.default_rng(2)
    return ConvNet(), rng.normal(size=(4, 2, 16, 16)), rng.integers(0, 5, 4)
