"""Every kind of store, opened in a fresh directory."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from store_kinds import STORES, Budget

from tensorstash.host.arrays import Array
from tensorstash.protocols import Store


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Budget], Store]:
    """Open a store of each kind, with a budget."""
    return lambda budget=None: STORES[request.param](tmp_path, budget)


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Iterator[Store]:
    """A store of each kind, without a budget."""
    with closing(open_store()) as opened:
        yield opened


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


def payload(nbytes: int, seed: int = 0) -> Array:
    """Return private random bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.fixture(name="open_descriptors")
def open_descriptors_fixture() -> Callable[[], int]:
    """Return the number of open file descriptors."""
    return open_descriptors


@pytest.fixture(name="payload")
def payload_fixture() -> Callable[..., Array]:
    """Return private random bytes."""
    return payload
