"""The random bits of stochastic rounding, against their definition spelled out in whole numbers."""

import numpy as np
import pytest

from tensorstash.kernels.dither import GOLDEN, dither, group_keys, seed_word
from tensorstash.kernels.groups import Groups

WORD = 2**32 - 1


def mixed(word: int) -> int:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        word = (word ^ word >> shift) * factor & WORD
    return word


@pytest.mark.parametrize("shape", [(7, 60), (5, 61), (3, 3), (1, 90_001), (2, 70_000)])
@pytest.mark.parametrize("size", [6, 7, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_are_a_hash_of_seed_group_and_place(shape: tuple[int, ...], size: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    word = seed_word(5)
    groups = Groups.of(shape, size)
    for block in groups.blocks():
        places = block.places(groups.length)
        low, scale = rng.standard_normal((2, len(places))).astype(dtype)
        words = [array.view(np.uint32).reshape(len(array), -1).tolist() for array in (low, scale)]
        folded = [[w[0] + (GOLDEN * w[1] if len(w) == 2 else 0) & WORD for w in column] for column in words]
        keys = [mixed(mixed(s ^ word) + first & WORD) for first, s in zip(*folded, strict=True)]
        got = dither(group_keys(low, scale, word), places)
        assert got.shape == places.shape
        for k in rng.integers(0, places.size, 50).tolist():
            place = int(places.reshape(-1)[k])
            expected = mixed(keys[k // block.width] + GOLDEN * (place // 2) & WORD)
            assert int(got.reshape(-1)[k]) == (expected >> 16 if place % 2 else expected & 0xFFFF)


def test_bits_look_random() -> None:
    groups = Groups.of((4096, 128), 128)
    rng = np.random.default_rng(1)
    parts, others = [], []
    for block in groups.blocks():
        places = block.places(groups.length)
        low, scale = (rng.random((2, len(places))) + 1).astype(np.float32)
        parts.append(dither(group_keys(low, scale, seed_word(0)), places))
        others.append(dither(group_keys(low, scale, seed_word(1)), places))
    bits, other = (np.concatenate(some).reshape(-1).astype(np.float64) / 65536 - 0.5 for some in (parts, others))
    spread = 1 / np.sqrt(bits.size)
    assert abs(bits.mean()) < 4 * spread / np.sqrt(12)
    assert abs(np.var(bits) * 12 - 1) < 4 * spread
    for a, b in ((bits[:-1], bits[1:]), (bits[:-2], bits[2:]), (bits[:-128], bits[128:]), (bits, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 * spread
    assert np.unique([seed_word(seed) for seed in (0, 1, 2**31, 2**32 - 1, 2**32, 2**70)]).size == 6
