"""What the checksum sees."""

import numpy as np
import pytest

from tensorstash.host.arrays import borrowed
from tensorstash.host.checksum import CHECKSUM_BLOCK, block_checksums, checksum

SIZES = [1, 7, 4096, 32 * 1024 - 1, 32 * 1024, 65_536, 100_003, CHECKSUM_BLOCK, CHECKSUM_BLOCK + 1, 4 * CHECKSUM_BLOCK]


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
