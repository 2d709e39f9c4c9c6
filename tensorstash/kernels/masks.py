"""One bit per element: booleans, which of two values it is, and whether it is zero.

The first is in the lowest bit, and the rest of the last byte is zeros. Words are flat unsigned integers. A function
that says whether something holds has filled its arrays with anything where the answer is no.
"""

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import BLOCK


def packed_nbytes(count: int, bits: int) -> int:
    """Return the bytes that ``count`` codes of ``bits`` bits take."""
    return -(-count * bits // 8)


def unsigned(array: Array) -> Array:
    """Return the bits of an array as a flat view of unsigned integers, two for elements of 16 bytes."""
    return array.reshape(-1).view(f"u{min(array.itemsize, 8)}")


def pack_booleans(flags: Array, packed: Array) -> bool:
    """Fill ``packed`` with flat bytes at one bit each, if all of them are 0 or 1, and return whether they are."""
    for start in range(0, flags.size, 8 * BLOCK):
        block = flags[start : start + 8 * BLOCK]
        if np.bitwise_or.reduce(block) > 1:
            return False
        _put(packed, start, block)
    return True


def unpack_booleans(packed: Array, flags: Array) -> None:
    """Fill bytes with 0 or 1; the inverse of :func:`pack_booleans`."""
    for start in range(0, flags.size, 8 * BLOCK):
        block = flags[start : start + 8 * BLOCK]
        block[:] = _ones(packed, start, block.size)


def pack_two_values(words: Array, pair: Array, packed: Array) -> bool:
    """Pack words at one bit each, if they have at most two values, and return whether they do.

    ``pair`` is filled with the first element, and the other value, or the first again if there is none.
    """
    pair[:] = words[0] if words.size else 0
    found = False
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        second = block != pair[0]
        if not found and second.any():
            found, pair[1] = True, block[second.argmax()]
        if found and not np.array_equal(block == pair[1], second):
            return False
        _put(packed, start, second)
    return True


def unpack_two_values(packed: Array, pair: Array, words: Array) -> None:
    """Fill words with the first or the second of a pair; the inverse of :func:`pack_two_values`."""
    first, second = pair
    with np.errstate(over="ignore"):
        step = second - first
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        block[:] = _ones(packed, start, block.size)
        block *= step
        block += first


def mask_nonzero(words: Array, mask: Array) -> int:
    """Fill a mask with ones where words are not zero, and return how many are not."""
    total = 0
    for start in range(0, words.size, BLOCK):
        there = words[start : start + BLOCK] != 0
        total += int(np.count_nonzero(there))
        _put(mask, start, there)
    return total


def gather_masked(words: Array, mask: Array, values: Array) -> None:
    """Fill ``values`` with the words whose bit is one, of which there are as many."""
    done = 0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        places = _places(mask, start, block.size)
        # The default mode "raise" would copy the target first.
        np.take(block, places, out=values[done : done + places.size], mode="clip")
        done += places.size


def scatter_masked(values: Array, mask: Array, words: Array) -> bool:
    """Fill words with values where the mask has ones, and zeros elsewhere, if it has as many; return whether it has."""
    done = 0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        places = _places(mask, start, block.size)
        if done + places.size > values.size:
            return False
        block[:] = 0
        block[places] = values[done : done + places.size]
        done += places.size
    return done == values.size


def _put(packed: Array, start: int, flags: Array) -> None:
    # ``start`` is a multiple of 8.
    ones = np.packbits(flags, bitorder="little")
    packed[start // 8 : start // 8 + ones.size] = ones


def _ones(packed: Array, start: int, count: int) -> Array:
    """Return a block of flags; the inverse of :func:`_put`."""
    return np.unpackbits(packed[start // 8 : start // 8 + -(-count // 8)], count=count, bitorder="little")


def _places(mask: Array, start: int, count: int) -> Array:
    # A block at a time: eight bytes of index per element are larger than the bytes that they save.
    return np.flatnonzero(_ones(mask, start, count).view(np.bool_))
