"""Bytes that are not those that were put are found when they are read, and named."""

import os
import sys

import numpy as np
import pytest

from tensorstash.errors import CorruptDataError
from tensorstash.host.checksum import CHECKSUM_BLOCK
from tensorstash.stores import Disk

PIECE = 4 * 2**20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reaches the unlinked file through /proc/self/fd")


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def config(request, tmp_path):
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
    "torn": lambda fd, written: os.pwrite(fd, bytes(range(256)) * (HALF // 256), HALF),
    "stale": lambda fd, written: os.pwrite(fd, bytes(range(256)) * 2, 512 * 77),
    "swapped": lambda fd, written: os.pwritev(fd, [written[HALF:], written[:HALF]], 0),
    "zeroed": lambda fd, written: os.pwrite(fd, bytes(4096), HALF),
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
