"""Every way in which storage fails ends in a named error, leaks nothing, and leaves the store usable."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from planted_faults import at_most, faulty_calls, in_turn, move_one_block, refuse, take_nothing

from tensorstash.errors import StoreError, StoreFullError
from tensorstash.host.pages import BLOCK, HUGE_PAGE, page_aligned, round_up
from tensorstash.stores import Disk
from tensorstash.stores.disk import slab as slab_module
from tensorstash.stores.disk.slab import Slab
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls

PIECE = 2**20


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def config(request, tmp_path):
    return Disk(directory=str(tmp_path), direct=request.param)


def reserve_nothing(number=errno.EOPNOTSUPP):
    """Reserve no blocks, as some file systems do."""

    def behave(call, fd, start, length):
        if call.__self__.preallocate:
            os.pwrite(fd, bytes(5), start)  # as the C library may before it gives up
            refuse(number)(call)
        call(fd, start, length)

    return behave


def take_and_refuse(call, fd, start, length):
    call(fd, start, length)
    refuse(errno.ENOSPC)(call)


def interrupt(call, *arguments):
    raise KeyboardInterrupt("interrupted")


def check_usable(store, payload):
    """A store that failed has leaked nothing and works on, and what is deleted twice counts once."""
    assert store.used_bytes == 0
    gone = []
    for nbytes in (100, 2 * PIECE + 1):
        slot = store.put(payload(nbytes))
        for each in gone:
            store.delete(each)
        assert store.used_bytes == round_up(nbytes)
        found = store.get(slot)
        assert np.array_equal(found, payload(nbytes))
        assert found.ctypes.data % 64 == 0  # as kernels want it
        gone += [slot, slot]
        for each in gone:
            store.delete(each)
    assert store.used_bytes == 0
    store.close()


FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
PUTS = [
    *((errno.errorcode[number], {"write": [refuse(number)]}) for number in (*FULL, errno.EIO, errno.ENODEV)),
    *((errno.errorcode[number], {"reserve": [refuse(number)]}) for number in (*FULL, errno.EIO, errno.ENODEV)),
    *(
        (errno.errorcode[number], {"reserve": [reserve_nothing()], "write": [at_most(4096), refuse(number)]})
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    ),
    ("ENOSPC", {"write": [at_most(4096), refuse(errno.ENOSPC)]}),
    ("ENOSPC", {"reserve": [take_and_refuse]}),
    ("took 0 of", {"write": [take_nothing]}),
    ("took 0 of", {"reserve": [reserve_nothing()], "write": [take_nothing]}),
    ("EIO", {"reserve": [refuse(errno.ENOSPC)], "available": [refuse(errno.EIO)]}),
    ("EIO", {"reserve": [take_and_refuse], "truncate": [refuse(errno.EIO)]}),
    ("interrupted", {"write": [interrupt]}),
]
"""A word of the error of a put, and what the system does in turn."""


@pytest.mark.parametrize("nbytes", [10_000, 3 * PIECE])
@pytest.mark.parametrize(("says", "turns"), PUTS)
def test_a_put_that_fails_is_named_takes_nothing_and_the_store_works_on(config, payload, says, turns, nbytes):
    calls = faulty_calls()
    store = DiskStore(config, calls)
    small = store.put(payload(4096))
    before, file = store.file_bytes, store.slab.file.fileno()
    for name, behaviours in turns.items():
        calls.board.plant(name, in_turn(*behaviours))
    is_full = says in map(errno.errorcode.get, FULL)
    expected = KeyboardInterrupt if says == "interrupted" else StoreFullError if is_full else StoreError
    with pytest.raises(expected, match=says) as caught:
        store.put(payload(nbytes))
    assert type(caught.value) is expected
    assert expected is KeyboardInterrupt or config.directory in str(caught.value)
    if "truncate" not in turns:
        assert os.fstat(file).st_size == store.file_bytes
        assert "reserve" not in turns or store.file_bytes == before
    calls.board.lift()
    assert store.used_bytes == 4096
    assert np.array_equal(store.get(small), payload(4096))
    store.delete(small)
    check_usable(store, payload)


def test_no_more_than_the_device_has_left_is_asked_for(config, payload):
    calls = faulty_calls(available=lambda *_: 3 * 4096, reserve=lambda call, *arguments: call(*arguments))
    store = DiskStore(config, calls)
    slot = store.put(payload(2 * 4096))
    with pytest.raises(StoreFullError, match=r"no room \(ENOSPC.*free some, or name another directory"):
        store.put(payload(4 * 4096))
    assert calls.board.strikes.count("reserve") == 1
    store.delete(slot)
    calls.board.lift()
    check_usable(store, payload)


def test_where_calls_share_the_place_in_a_file_none_runs_while_it_grows(config, payload):
    alone = []

    def reserve(call, *arguments):
        alone.append(store.slab._turn.locked())
        call(*arguments)

    store = DiskStore(config, replace(faulty_calls(reserve=reserve), positioned=False, preallocate=False))
    slots = [store.put(payload(PIECE, seed)) for seed in range(3)]
    assert alone
    assert all(alone)
    del slots[:]
    check_usable(store, payload)


@pytest.mark.parametrize("reserve", [{}, {"reserve": reserve_nothing()}], ids=["reserved", "zeros"])
@pytest.mark.parametrize("most", [32 * 4096 + 512, HUGE_PAGE - 1])
def test_short_transfers_are_carried_on(config, payload, most, reserve):
    calls = faulty_calls(write=at_most(most), read=at_most(most), **reserve)
    store = DiskStore(config, calls)
    for nbytes in (100, 300_000, HUGE_PAGE + 5):
        slot = store.put(payload(nbytes))
        assert os.fstat(store.slab.file.fileno()).st_size == store.file_bytes
        assert np.array_equal(store.get(slot), payload(nbytes))
        store.delete(slot)
    calls.board.lift()
    check_usable(store, payload)


@pytest.mark.parametrize("nbytes", [1_000, 3 * PIECE])
def test_a_read_that_fails_is_named_and_can_be_tried_again(config, payload, nbytes):
    calls = faulty_calls(read=refuse(errno.EIO))
    store = DiskStore(config, calls)
    slot = store.put(payload(nbytes))
    with pytest.raises(StoreError, match=r"reading .* EIO"):
        store.get(slot)
    calls.board.lift()
    assert np.array_equal(store.get(slot), payload(nbytes))
    store.delete(slot)
    check_usable(store, payload)


class SlowReads:
    """Reads that say when they begin, and end when they are told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, call, *arguments):
        self.begun.release()
        assert self.go_on.acquire(timeout=400)
        return call(*arguments)


@pytest.mark.parametrize("nbytes", [5_000, 3 * PIECE])
def test_a_record_that_is_being_read_keeps_its_place(config, payload, nbytes):
    slow = SlowReads()
    store = DiskStore(config, faulty_calls(read=slow))
    slot = store.put(payload(nbytes))
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(store.get, slot)
        assert slow.begun.acquire(timeout=400)
        store.delete(slot)
        other = store.put(payload(nbytes, 1))
        slow.go_on.release(100)
        assert np.array_equal(reading.result(), payload(nbytes))
    assert store.used_bytes == round_up(nbytes)
    del other
    assert store.used_bytes == 0
    store.close()


def test_a_store_that_is_being_read_closes_when_the_last_read_is_done(config, payload):
    slow = SlowReads()
    store = DiskStore(config, faulty_calls(read=slow))
    slab = store.slab
    slot = store.put(payload(5_000))
    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(store.get, slot) for _ in range(2)]
        for _ in reading:
            assert slow.begun.acquire(timeout=400)
        store.close()
        for _ in reading:
            assert not slab.file.closed
            slow.go_on.release()
            done, reading = wait(reading, return_when=FIRST_COMPLETED)
            assert all(np.array_equal(read.result(), payload(5_000)) for read in done)
    assert slab.file.closed


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_where_no_blocks_can_be_reserved_zeros_are_written_and_it_is_tried_once(config, payload, number):
    asked = []

    def reserve(call, *arguments):
        asked.append(call.__self__.preallocate)
        reserve_nothing(number)(call, *arguments)

    store = DiskStore(replace(config, direct=False), faulty_calls(reserve=reserve))
    slots = [store.put(payload(PIECE, seed)) for seed in range(5)]
    assert all(np.array_equal(store.get(slot), payload(PIECE, seed)) for seed, slot in enumerate(slots))
    slab = store.slab
    assert os.fstat(slab.file.fileno()).st_blocks * 512 >= store.file_bytes == os.fstat(slab.file.fileno()).st_size
    assert asked.count(True) == 1
    del slots[:]
    check_usable(store, payload)


HESITATIONS = (
    ([*[take_nothing] * 7, move_one_block, *[take_nothing] * 7, move_one_block], True),
    ([move_one_block, *[take_nothing] * 8], False),
)


def test_a_device_that_takes_its_time_is_asked_again_but_not_for_ever(tmp_path):
    """A write of data or of zeros may take nothing, or less than a block; eight times in a row are a failure."""
    data = np.arange(2 * 4096, dtype=np.uint32).view(np.uint8)[: 2 * 4096]
    for turns, is_written in HESITATIONS:
        calls = faulty_calls(write=in_turn(*turns))
        slab = Slab(str(tmp_path), calls, direct=False, limit_bytes=None)
        offset, _ = slab.take(data.size)
        with nullcontext() if is_written else pytest.raises(StoreError):
            slab.write([data], offset)
        assert len(calls.board.strikes) == len(turns)
        slab.file.close()
        calls = faulty_calls(write=in_turn(*turns))
        with open(tmp_path / "file", "w+b") as file:
            with nullcontext() if is_written else pytest.raises(OSError, match="took 0 of 4096 bytes of zeros"):
                replace(calls, preallocate=False).reserve(file.fileno(), 0, 8192)
            assert os.fstat(file.fileno()).st_size == (8192 if is_written else 4096)
        assert len(calls.board.strikes) == len(turns)


@pytest.mark.parametrize(("number", "is_an_error"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_only_a_file_system_without_direct_transfers_is_written_to_without_them(
    tmp_path, monkeypatch, number, is_an_error
):
    monkeypatch.setattr("tensorstash.stores.disk.syscalls.os.pwrite", refuse(number))
    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError) if is_an_error else nullcontext():
        assert Syscalls().enable_direct(file.fileno()) == 0


@pytest.fixture(params=["tmpfs", "ext2"])
def small(request, tmp_path):
    """A mounted file system; ext2 has direct I/O and reserves no blocks."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mkfs.ext2") is None:
        pytest.skip("needs mkfs.ext2 and the right to mount a file system")
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none"]
    if request.param == "ext2":
        with open(image, "wb") as file:
            file.truncate(24 * 2**20)
        subprocess.run(["mkfs.ext2", "-q", "-F", str(image)], check=True)
        mount = ["mount", "-o", "loop", str(image)]
    mounted = subprocess.run([*mount, str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("alignment", [0, 64, 4032])
def test_a_write_that_stops_in_the_copied_end_of_a_record_goes_on_from_there(tmp_path, payload, alignment):
    nbytes = HUGE_PAGE + 100
    store = DiskStore(Disk(directory=str(tmp_path)), faulty_calls(write=at_most(round_up(nbytes) - BLOCK)))
    data = page_aligned(nbytes + alignment)[alignment:]
    data[:] = payload(nbytes)
    assert np.array_equal(store.get(store.put(data)), payload(nbytes))
    store.close()


@pytest.mark.parametrize("preallocate", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_a_file_system_is_used_to_its_end(small, payload, direct, preallocate):
    free = os.statvfs(small).f_bfree
    store = DiskStore(Disk(directory=str(small), direct=direct), Syscalls(preallocate=preallocate))
    if direct and not store.direct:
        pytest.skip("the file system has no direct I/O")
    slots = [store.put(payload(2**20 + 5, seed)) for seed in range(18)]

    def fill():
        while True:
            slots.append(store.put(payload(2**20 + 5, len(slots))))

    with pytest.raises(StoreFullError, match="ENOSPC"):
        fill()
    slab = store.slab
    assert os.fstat(slab.file.fileno()).st_blocks * 512 >= store.file_bytes
    assert all(np.array_equal(store.get(slot), payload(2**20 + 5, seed)) for seed, slot in enumerate(slots))
    store.delete(slots.pop())
    assert np.array_equal(store.get(store.put(payload(2**20 + 5))), payload(2**20 + 5))
    store.close()
    assert os.statvfs(small).f_bfree == free


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no direct I/O")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_device_that_is_full_when_direct_io_is_tried_is_used_when_there_is_room(
    tmp_path, payload, number, monkeypatch
):
    real, refused = os.pwrite, []

    def full(fd, data, offset):
        refused.append(len(data))
        refuse(number)(full)

    monkeypatch.setattr(os, "pwrite", full)
    store = Disk(directory=str(tmp_path)).open()
    monkeypatch.setattr(os, "pwrite", real)
    assert refused == [4096], "a device that is full is asked once"
    slab = store.slab
    assert slab.address_unit == 4096
    check_usable(store, payload)


def test_where_direct_transfers_cannot_be_tried_the_file_is_closed(tmp_path, monkeypatch):
    files, made = [], slab_module.TemporaryFile

    def recorded(**arguments):
        files.append(made(**arguments))
        return files[-1]

    monkeypatch.setattr(slab_module, "TemporaryFile", recorded)
    with pytest.raises(StoreError, match="trying direct I/O"):
        Slab(str(tmp_path), faulty_calls(enable_direct=refuse(errno.EIO)), direct=True, limit_bytes=None)
    assert files[0].closed
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *mode, **options):
        if flags & os.O_RDWR:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr("tempfile._os.open", refuse)
    with pytest.raises(StoreError, match="Too many open files"):
        Slab(str(tmp_path), Syscalls(), direct=False, limit_bytes=None)
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
