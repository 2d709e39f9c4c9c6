"""Bytes that are not those that were put are found when they are read, and named."""

import os
import sys

import numpy as np
import pytest

from tensorstash.errors import CorruptDataError
from tensorstash.host.arrays import borrowed
from tensorstash.host.checksum import CHECKSUM_BLOCK, block_checksums, checksum, joint_checksum
from tensorstash.stores import Disk

PIECE = 2**20


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def config(request, tmp_path):
    if sys.platform != "linux":
        pytest.skip("reaches the unlinked file through /proc/self/fd")
    return Disk(directory=str(tmp_path), direct=request.param)


@pytest.mark.parametrize("nbytes", [1_000, 50_000, PIECE, 3 * PIECE + 8])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_bit_is_found(config, payload, nbytes, where):
    at = {"first": 0, "middle": nbytes // 2, "last": nbytes - 1}[where]
    start = at // CHECKSUM_BLOCK * CHECKSUM_BLOCK
    named = rf"^bytes {start} to {min(start + CHECKSUM_BLOCK, nbytes)} on disk of a record of {nbytes} bytes"

    def flip(fd, written):
        os.pwrite(fd, bytes([written[at] ^ 0x10]), at)

    assert_found(config, payload(nbytes), flip, named + r".*got checksum 0x[0-9a-f]{16}, expected 0x[0-9a-f]{16}")


HALF = PIECE // 2
DAMAGES = {
    "swapped": lambda fd, written: os.pwritev(fd, [written[HALF:], written[:HALF]], 0),
    "cut": lambda fd, written: os.ftruncate(fd, HALF),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_is_not_the_one_written_is_found(config, payload, damage):
    assert_found(config, payload(PIECE), DAMAGES[damage])


def assert_found(config, data, damage, message=None):
    """Damage a record through a second descriptor, and put it right again."""
    store = config.open()
    slot = store.put(data.copy())
    slab = store.slab
    fd = os.open(f"/proc/self/fd/{slab.file.fileno()}", os.O_RDWR)
    damage(fd, written := os.pread(fd, data.size, 0))
    with pytest.raises(CorruptDataError, match=message):
        store.get(slot)
    os.pwrite(fd, written, 0)
    os.close(fd)
    assert np.array_equal(store.get(slot), data)
    store.close()


@pytest.mark.parametrize("nbytes", [0, 7, CHECKSUM_BLOCK, CHECKSUM_BLOCK + 1, 3 * CHECKSUM_BLOCK + 77_777])
def test_each_block_has_its_checksum_and_a_copy_is_made_of_all_bytes_and_no_more(payload, nbytes):
    data, memory = borrowed(payload(nbytes)), np.full(nbytes + 20, 77, np.uint8)
    copy = memory[3 : 3 + nbytes]
    blocks = [data[start : start + CHECKSUM_BLOCK] for start in range(0, nbytes, CHECKSUM_BLOCK)]
    assert block_checksums(data) == block_checksums(data, copy=copy) == list(map(checksum, blocks))
    assert np.array_equal(copy, data)
    assert (memory[:3] == 77).all()
    assert (memory[3 + nbytes :] == 77).all()
    assert joint_checksum(data[:5], data[5:]) == checksum(data)
