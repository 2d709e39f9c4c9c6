"""Shared fixtures of the reference engine's tests."""

import gc
from collections.abc import Iterator

import pytest

from tensorstash.reference import MemorySpace, memory


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
    yield space
    assert space.allocated_bytes == before
