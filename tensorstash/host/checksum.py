"""A checksum fast enough to run beside direct I/O: XXH3, at the speed at which memory is read."""

from ctypes import c_uint8
from functools import lru_cache
from typing import Any

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from tensorstash.host.arrays import Array

CHECKSUM_BLOCK = 2**20  # bytes that are summed as one: few enough to stay in a core's cache


def checksum(data: Array) -> int:
    """Return the checksum of a one-dimensional ``uint8`` array; the interpreter lock is released meanwhile."""
    return xxh3_64_intdigest(data.data)


def checksum_at(address: int, nbytes: int) -> int:
    """Return the checksum of memory that the caller keeps."""
    return xxh3_64_intdigest(_bytes(nbytes).from_address(address))


@lru_cache(1024)
def _bytes(nbytes: int) -> Any:
    return c_uint8 * nbytes


def joint_checksum(*parts: Array) -> int:
    """Return the checksum of one-dimensional ``uint8`` arrays, as if they lay one after the other.

    >>> data = np.arange(200, dtype=np.uint8)
    >>> joint_checksum(data[:7], data[7:]) == checksum(data)
    True
    """
    state = xxh3_64()
    for part in parts:
        state.update(part.data)
    return state.intdigest()


def block_checksums(data: Array, *, copy: Array | None = None) -> list[int]:
    """Return the checksum of each block, and fill ``copy`` with the data on the way, while the cache has it."""
    checksums = []
    for start in range(0, data.size, CHECKSUM_BLOCK):
        block = data[start : start + CHECKSUM_BLOCK]
        if copy is not None:
            np.copyto(copy[start : start + CHECKSUM_BLOCK], block)
        checksums.append(checksum(block))
    return checksums
