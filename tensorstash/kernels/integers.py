"""Integers as their distance from the smallest one."""

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import BLOCK


def unsigned(array: Array) -> Array:
    """Return the bits of an array as a flat view of unsigned integers, on which every comparison is exact.

    Elements of 16 bytes become two integers each.
    """
    return array.reshape(-1).view(f"u{min(array.itemsize, 8)}")


def integer_range(words: Array) -> tuple[int, int]:
    """Return the smallest and the largest integer as Python numbers, whose difference cannot overflow.

    Args:
        words: at least one integer of 2, 4 or 8 bytes, signed or not.

    >>> integer_range(np.array([3, -2**63, 2**63 - 1]))
    (-9223372036854775808, 9223372036854775807)
    """
    # Both of a block while it is in the cache.
    blocks = (words[start : start + BLOCK] for start in range(0, words.size, BLOCK))
    pairs = [(int(block.min()), int(block.max())) for block in blocks]
    return min(low for low, _ in pairs), max(high for _, high in pairs)


def subtract_base(words: Array, base: Array, stored: Array) -> None:
    """Fill ``stored`` with the distances of integers from a base, without their high bytes.

    Args:
        words: flat integers of 2, 4 or 8 bytes.
        base: one such integer.
        stored: as many unsigned integers of 1, 2 or 4 bytes, narrower than ``words``; filled.
    """
    for start in range(0, words.size, BLOCK):
        target = stored[start : start + BLOCK]
        # Cutting off high bytes and subtracting commute.
        np.copyto(target, words[start : start + BLOCK], casting="unsafe")
        target -= base.astype(target.dtype)


def add_base(stored: Array, base: Array, words: Array) -> None:
    """Fill unsigned words with the sums of distances and a base; the inverse of :func:`subtract_base`.

    Args:
        stored: flat unsigned integers of 1, 2 or 4 bytes, narrower than ``words``.
        base: one unsigned integer of 2, 4 or 8 bytes.
        words: as many of these; filled.
    """
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        np.copyto(block, stored[start : start + BLOCK])
        block += base
