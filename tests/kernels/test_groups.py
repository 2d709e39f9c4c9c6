"""Groups cover an array; the random bits of rounding look random, and test_golden.py says which they are."""

import numpy as np
import pytest

from tensorstash.kernels.dither import dither, group_keys, seed_word
from tensorstash.kernels.groups import BLOCK, Block, Groups


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


@pytest.mark.parametrize("shape", [(), (1,), (129,), (3, 300), (5, 70_000), (700, 300), (2, 3, 4), (40, 2, 65_537)])
@pytest.mark.parametrize("size", [1, 3, 128, 65_536, 10**6])
def test_blocks_cover_every_group_once(shape: tuple[int, ...], size: int) -> None:
    groups = Groups.of(shape, size)
    elements = np.arange(groups.rows * groups.length).reshape(groups.rows, groups.length)
    numbers = np.arange(groups.count).reshape(groups.rows, groups.per_row)
    there, known = np.zeros_like(elements), np.zeros_like(numbers)
    for block in groups.blocks():
        found = block.elements(elements)
        assert found.size <= BLOCK or len(found) == 1
        assert (found == block.places(groups.length)).all()
        ends = numbers[block.rows, block.groups].reshape(-1) % groups.per_row == groups.per_row - 1
        assert (np.where(ends, groups.length - size * (groups.per_row - 1), size) == block.width).all()
        assert (
            found // groups.length * groups.per_row + found % groups.length // size
            == numbers[block.rows, block.groups].reshape(-1, 1)
        ).all()
        block.put(block.elements(there) + 1, there)
        known[block.rows, block.groups] += 1
    assert (there == 1).all()
    assert (known == 1).all()


def test_places_are_told_beyond_32_bits() -> None:
    block = Block(slice(2**20, 2**20 + 1), slice(2, 4), slice(1, 2), 2)
    assert block.places(2**13).tolist() == [[2**33 + 2, 2**33 + 3]]
