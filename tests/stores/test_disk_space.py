"""Where a disk store has its file, and what it takes of its device."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from planted_faults import faulty_calls

from tensorstash.errors import StoreFullError
from tensorstash.host.pages import BLOCK, page_aligned, round_up
from tensorstash.stores import Disk
from tensorstash.stores.disk.slab import Slab
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls

MIB = 2**20


def blocks_on_disk(store) -> int:
    return os.fstat(store.slab.file.fileno()).st_blocks * 512


def test_the_file_is_flat_over_steps_of_changing_shapes(tmp_path, payload):
    """Records live from forward to backward, some for several steps, and go in any order."""
    store, order = Disk(directory=str(tmp_path)).open(), random.Random(0)
    shapes = [[order.randint(1, 3 * MIB) for _ in range(12)] for _ in range(3)]
    source, kept, most_used = payload(3 * MIB), [], 0
    for step in range(40):
        slots = [store.put(source[:nbytes]) for nbytes in shapes[step % 3]]
        most_used = max(most_used, store.used_bytes)
        if step % 7 == 0:
            kept.append(slots.pop(order.randrange(len(slots))))
            if len(kept) > 3:
                store.delete(kept.pop(0))
        order.shuffle(slots)
        for slot in slots:
            store.delete(slot)
        assert store.file_bytes <= 1.25 * most_used + 4 * MIB
    store.close()


@pytest.mark.parametrize(
    ("nbytes", "budget", "is_full"), [(4096, 64, False), (4096, None, True), (300 * 1024, None, False)]
)
def test_room_in_scraps_is_used_before_the_file_grows_or_is_full(tmp_path, payload, nbytes, budget, is_full):
    left = [64 * 4096 if is_full else 2**40]

    def reserve(call, fd, start, length):
        call(fd, start, length)
        left[0] -= length

    config = Disk(directory=str(tmp_path), budget=budget and budget * nbytes)
    store = DiskStore(config, faulty_calls(available=lambda *_: left[0], reserve=reserve))
    slots = [store.put(payload(nbytes, seed)) for seed in range(64)]
    for slot in slots[::2]:
        store.delete(slot)
    before = store.file_bytes
    whole = store.put(payload(32 * nbytes))
    assert np.array_equal(store.get(whole), payload(32 * nbytes))
    assert store.file_bytes == before
    if budget or is_full:
        assert store.used_bytes == store.file_bytes == 64 * nbytes
        with pytest.raises(StoreFullError, match="ENOSPC" if is_full else "budget"):
            store.put(payload(1))
    store.close()


@pytest.mark.parametrize("preallocate", [True, False])
def test_blocks_are_there_before_they_are_written_and_never_above_the_budget(tmp_path, payload, preallocate):
    budget = 10 * MIB + 123
    store = DiskStore(Disk(directory=str(tmp_path), budget=budget), Syscalls(preallocate=preallocate))
    slots = [store.put(payload(MIB + 1)) for _ in range(9)]
    assert store.used_bytes <= store.file_bytes <= budget
    assert blocks_on_disk(store) >= store.file_bytes
    assert blocks_on_disk(store) <= store.file_bytes + 64 * 1024
    for slot in slots:
        store.delete(slot)
    assert store.used_bytes == 0
    store.close()


def test_direct_io_is_used_where_it_works_and_only_there(tmp_path):
    config = Disk(directory=str(tmp_path))
    direct, off, refused = (
        config.open(),
        Disk(directory=str(tmp_path), direct=False).open(),
        DiskStore(config, faulty_calls(enable_direct=lambda call, fd: 0)),
    )
    if not direct.direct:
        pytest.skip("the file system has no direct I/O")
    assert not off.direct
    assert not refused.direct
    for store in (direct, off, refused):
        assert store.file_bytes == blocks_on_disk(store) == 0
        store.close()


@pytest.mark.parametrize("directory", ["/var/tmp", "/dev/shm"])
@pytest.mark.parametrize("alignment", [0, 64, 4032])
@pytest.mark.parametrize("nbytes", [2 * MIB, 3 * MIB + 5, 4 * MIB + 100])
def test_all_but_a_block_or_two_is_written_from_where_it_is_and_read_to_as_good_a_place(
    payload, directory, alignment, nbytes
):
    if not os.path.isdir(directory):
        pytest.skip(f"no {directory}")
    written = []

    def note(call, fd, parts, offset):
        written.extend((part.ctypes.data, part.size) for part in parts)
        return call(fd, parts, offset)

    store = DiskStore(Disk(directory=directory), faulty_calls(write=note))
    if not store.direct:
        pytest.skip("no direct I/O")
    unit = store.slab.address_unit
    data = page_aligned(nbytes + alignment)[alignment:]
    data[:] = payload(nbytes)
    written.clear()
    slot = store.put(data)
    start, stop = data.ctypes.data, data.ctypes.data + nbytes
    assert sum(size for _, size in written) == round_up(nbytes)
    assert sum(size for at, size in written if not start <= at < stop) <= 2 * BLOCK
    read = store.get(slot)
    assert np.array_equal(read, payload(nbytes))
    assert read.ctypes.data % unit == data.ctypes.data % unit
    store.close()


def test_a_free_end_is_grown_by_what_it_lacks(tmp_path, payload):
    store = Disk(directory=str(tmp_path)).open()
    store.delete(store.put(payload(200 * 1024)))
    slot = store.put(payload(232 * 1024))
    assert store.file_bytes <= 250 * 1024
    assert np.array_equal(store.get(slot), payload(232 * 1024))
    store.close()


@pytest.mark.parametrize("direct", [False, True])
def test_a_limit_is_used_in_whole_blocks(tmp_path, direct):
    slab = Slab(str(tmp_path), Syscalls(), direct=direct, limit_bytes=10_000)
    extents = [slab.take(4096) for _ in range(3)]
    assert extents == [(0, 4096), (4096, 4096), None]
    assert slab.size == 8192
    slab.file.close()


def test_a_home_directory_is_found_on_the_machine_that_opens(monkeypatch):
    config = Disk(directory=Path("~/scratch"))
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("USERPROFILE", "/home/someone")
    assert config.directory == "~/scratch"
    assert config.directories == (os.path.join("/home/someone", "scratch"),)


def test_the_default_directory_is_one_for_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert Disk().directories == (str(tmp_path),)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert os.path.isdir(*Disk().directories)
