"""What the checksum sees."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tensorstash.buffers import borrowed
from tensorstash.stores.checksum import CHECKSUM_BLOCK, checksum

SIZES = [1, 7, 4096, 32 * 1024 - 1, 32 * 1024, 65_536, 100_003, CHECKSUM_BLOCK, CHECKSUM_BLOCK + 1, 4 * CHECKSUM_BLOCK]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("content", ["random", "zeros"])
def test_every_flipped_bit_of_a_sample_is_seen(payload, nbytes, content):
    data = payload(nbytes) if content == "random" else np.zeros(nbytes, np.uint8)
    whole = checksum(data)
    choose = np.random.default_rng(1)
    for at in {0, nbytes // 2, nbytes - 1, *choose.integers(0, nbytes, 20).tolist()}:
        for bit in range(8):
            data[at] ^= 1 << bit
            assert checksum(data) != whole
            data[at] ^= 1 << bit
    assert checksum(data) == whole


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2047), st.integers(0, 2047), st.integers(1, 64), st.booleans())
def test_sectors_in_each_others_place_are_seen(one, other, sectors, sparse):
    """Also where every sector has the same sum: one word set in each, at a place of its own."""
    rows = np.zeros((2048, 64), np.uint64)
    rows[np.arange(2048), np.arange(2048) % 64] = 1
    if not sparse:
        rows *= np.arange(1, 2049, dtype=np.uint64)[:, None]
    last = 2048 - sectors
    one, other = min(one, last), min(other, last)
    if abs(one - other) < sectors:
        return
    here, there = slice(one, one + sectors), slice(other, other + sectors)
    moved = rows.copy()
    moved[here], moved[there] = rows[there], rows[here]
    unseen = checksum(moved.reshape(-1).view(np.uint8)) == checksum(rows.reshape(-1).view(np.uint8))
    assert unseen == np.array_equal(moved, rows)


def test_a_sum_over_parts_is_the_sum_of_the_whole(payload):
    data = borrowed(payload(3 * CHECKSUM_BLOCK + 77_777))
    parts = 0
    for start in range(0, data.size, 2 * CHECKSUM_BLOCK):
        parts = checksum(data[start : start + 2 * CHECKSUM_BLOCK], parts)
    assert parts == checksum(data)


def test_the_address_does_not_matter(payload):
    data = payload(200_001)
    assert checksum(data[1:]) == checksum(data[1:].copy())
