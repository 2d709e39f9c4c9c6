"""Bytes that are not those that were put are found when they are read, and named."""

import os
import sys

import numpy as np
import pytest
from store_kinds import PIECE

from tensorstash.errors import CorruptDataError
from tensorstash.host.checksum import CHECKSUM_BLOCK
from tensorstash.stores import Disk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reaches the unlinked file through /proc/self/fd")


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def config(request, tmp_path):
    return Disk(directory=str(tmp_path), direct=request.param)


def slab_on_disk(store) -> int:
    """Return a second descriptor of the slab, through the back door."""
    (slab,) = store._slabs
    return os.open(f"/proc/self/fd/{slab._file.fd}", os.O_RDWR)


@pytest.mark.parametrize("nbytes", [1_000, 50_000, PIECE, 3 * PIECE + 8])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_bit_is_found(config, payload, nbytes, where):
    store = config.open()
    slot = store.put(payload(nbytes))
    fd = slab_on_disk(store)
    at = {"first": 0, "middle": nbytes // 2, "last": nbytes - 1}[where]
    (byte,) = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte ^ 0x10]), at)
    start = at // CHECKSUM_BLOCK * CHECKSUM_BLOCK
    named = rf"^bytes {start} to {min(start + CHECKSUM_BLOCK, nbytes)} on disk of a record of {nbytes} bytes"
    with pytest.raises(CorruptDataError, match=named + r".*got checksum 0x[0-9a-f]{16}, expected 0x[0-9a-f]{16}"):
        store.get(slot)
    os.pwrite(fd, bytes([byte]), at)
    os.close(fd)
    assert np.array_equal(store.get(slot), payload(nbytes))
    store.close()


@pytest.mark.parametrize("damage", ["torn", "stale", "swapped", "zeroed", "cut"])
def test_a_record_that_is_not_the_one_written_is_found(config, payload, damage):
    nbytes = PIECE
    store = config.open()
    slot = store.put(payload(nbytes))
    fd = slab_on_disk(store)
    half, written = nbytes // 2, os.pread(fd, nbytes, 0)
    match damage:
        case "torn":
            os.pwrite(fd, payload(half, 1), half)
        case "stale":
            os.pwrite(fd, payload(512, 2), 512 * 77)
        case "swapped":
            one, other = os.pread(fd, 4096, 0), os.pread(fd, 4096, half)
            os.pwrite(fd, other, 0)
            os.pwrite(fd, one, half)
        case "zeroed":
            os.pwrite(fd, bytes(4096), half)
        case "cut":
            os.ftruncate(fd, half)
    with pytest.raises(CorruptDataError):
        store.get(slot)
    os.pwrite(fd, written, 0)
    os.close(fd)
    assert np.array_equal(store.get(slot), payload(nbytes))
    store.close()
