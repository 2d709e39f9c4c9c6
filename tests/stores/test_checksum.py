"""What the checksum sees."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tensorstash import native
from tensorstash.buffers import borrowed
from tensorstash.stores.checksum import CHECKSUM_BLOCK, block_checksums, checksum

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


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("address", [0, 1, 24])
def test_compiled_or_not_it_is_the_same(payload, monkeypatch, nbytes, address):
    data = payload(nbytes + address)[address:]
    here = block_checksums(data)
    monkeypatch.setattr(native, "functions", None)
    assert block_checksums(data) == here


@pytest.mark.parametrize("nbytes", [0, *SIZES])
@pytest.mark.parametrize("address", [0, 3])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_copy_is_made_of_all_bytes_and_no_more(payload, monkeypatch, nbytes, address, compiled):
    if not compiled:
        monkeypatch.setattr(native, "functions", None)
    data = borrowed(payload(nbytes))
    memory = np.full(nbytes + 20, 77, np.uint8)
    copy = memory[address : address + nbytes]
    assert block_checksums(data, copy=copy) == block_checksums(data)
    assert np.array_equal(copy, data)
    assert (memory[:address] == 77).all()
    assert (memory[address + nbytes :] == 77).all()


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
@pytest.mark.parametrize(
    ("nbytes", "sums", "block", "copied"),
    [
        (12, 1, 4, 12),
        (0, 1, 4, 0),
        (16, 1, 0, 16),
        (16, 1, -1, 16),
        (16, 1, 1, 16),
        (24, 3, 2, 24),
        (16, 1, 2, 8),
        (16, 0, 2, 16),
        (16, 1, 2, 24),
    ],
)
def test_sums_that_do_not_fit_are_refused(nbytes, sums, block, copied):
    with pytest.raises(ValueError, match="expected whole words"):
        native.functions.column_sums(
            np.zeros(nbytes, np.uint8), np.zeros(sums, np.uint64), block, np.zeros(copied, np.uint8)
        )


def test_the_address_does_not_matter(payload):
    data = payload(200_001)
    assert checksum(data[1:]) == checksum(data[1:].copy())
