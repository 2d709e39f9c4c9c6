"""Dither, the random bits of stochastic rounding: a hash of seed, group and place, the same on every device.

There is no sequence to keep in step: each element's bits are worked out on their own, in any order, with arithmetic on
words of 32 bits that NumPy and the kernels of a device agree about. The hash is lowbias32, by Chris Wellons
(https://nullprogram.com/blog/2018/07/31/), of the public domain.
"""

from zlib import crc32

import numpy as np

from tensorstash.host.arrays import Array

GOLDEN = 0x9E3779B9  # 2**32 over the golden ratio, to the nearest odd number: its multiples are far from one another


def seed_word(seed: int) -> int:
    """Return a word of 32 bits for a seed of any size; seeds below 2**32 have different ones."""
    return crc32(seed.to_bytes(max(4, -(-seed.bit_length() // 8)), "little"))


def group_keys(low: Array, scale: Array, word: int) -> Array:
    """Return seeds that set the random bits of each group apart from those of groups with another low or scale."""
    keys = _word(scale)
    keys ^= np.uint32(word)
    mix(keys)
    keys += _word(low)
    mix(keys)
    return keys


def dither(keys: Array, places: Array) -> Array:
    """Return 16 random bits for every element of a matrix, whose rows are groups, by its place in the tensor."""
    # Elements 2k and 2k + 1 of the tensor have the lower and the upper half of one word, if they are of one group.
    words = (places >> 1).astype(np.uint32, copy=False)
    words *= np.uint32(GOLDEN)
    words += keys[:, None]
    mix(words)
    words >>= ((places & 1) << 4).astype(np.uint32, copy=False)
    return words.astype(np.uint16)


def mix(words: Array) -> None:
    """Replace each of the words, ``uint32``, by its hash; a one-to-one mapping."""
    shifted = words >> np.uint32(16)
    words ^= shifted
    words *= np.uint32(0x7FEB352D)
    np.right_shift(words, np.uint32(15), out=shifted)
    words ^= shifted
    words *= np.uint32(0x846CA68B)
    np.right_shift(words, np.uint32(16), out=shifted)
    words ^= shifted


def _word(floats: Array) -> Array:
    words = floats.view(np.uint32).reshape(-1, floats.itemsize // 4)
    return words[:, 0] + np.uint32(GOLDEN) * words[:, -1] if words.shape[1] == 2 else words[:, 0].copy()
