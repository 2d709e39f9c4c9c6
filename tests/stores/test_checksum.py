"""What the checksum sees."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tensorstash.host.arrays import borrowed
from tensorstash.host.checksum import CHECKSUM_BLOCK, block_checksums, checksum

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


@pytest.mark.parametrize("nbytes", [0, *SIZES, 3 * CHECKSUM_BLOCK + 77_777])
def test_each_block_has_the_checksum_that_it_has_alone(payload, nbytes):
    data = borrowed(payload(nbytes))
    blocks = [data[start : start + CHECKSUM_BLOCK] for start in range(0, nbytes, CHECKSUM_BLOCK)]
    assert block_checksums(data) == [found for block in blocks for found in block_checksums(block)]


@pytest.mark.parametrize("nbytes", [0, *SIZES])
@pytest.mark.parametrize("address", [0, 3])
def test_a_copy_is_made_of_all_bytes_and_no_more(payload, nbytes, address):
    data = borrowed(payload(nbytes))
    memory = np.full(nbytes + 20, 77, np.uint8)
    copy = memory[address : address + nbytes]
    assert block_checksums(data, copy=copy) == block_checksums(data)
    assert np.array_equal(copy, data)
    assert (memory[:address] == 77).all()
    assert (memory[address + nbytes :] == 77).all()


def test_checksums_are_those_of_xxh3():
    """Those of a payload that was written once stay what they were: the published values of XXH3_64bits, seed 0."""
    assert checksum(np.zeros(0, np.uint8)) == 0x2D06800538D394C2
    assert block_checksums(np.frombuffer(b"abc", np.uint8)) == [0x78AF5F94892F3950]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("address", [0, 1, 24])
def test_the_address_does_not_matter(payload, nbytes, address):
    data = payload(nbytes + address)[address:]
    assert block_checksums(data) == block_checksums(data.copy())
    assert checksum(data) == checksum(data.copy())
