"""What tests of stores share."""

import gc
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tensorstash.host.arrays import Array


def open_descriptors() -> int:
    """Return the number of open file descriptors; 0 where the system has no list of them."""
    return len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    """Every test gives back the file descriptors it took."""
    gc.collect()
    before = open_descriptors()
    yield
    gc.collect()
    assert open_descriptors() <= before


@pytest.fixture
def payload() -> Callable[..., Array]:
    """Return private random bytes."""

    def payload(nbytes: int, seed: int = 0) -> Array:
        return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)

    return payload
