"""Every way in which storage fails ends in a named error, leaks nothing, and leaves the store usable."""

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from store_kinds import PIECE

from tensorstash.errors import StoreError, StoreFullError
from tensorstash.host.pages import round_up
from tensorstash.stores import Disk
from tensorstash.stores.disk.slab import Slab
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls


def beginning(parts, nbytes):
    """Return as many of the first bytes of arrays, at least one array."""
    first, *others = parts
    return [first[:nbytes], *(beginning(others, nbytes - first.size) if others and nbytes > first.size else ())]


@dataclass(frozen=True)
class Faulty(Syscalls):
    """System calls that consult a fault before they run."""

    faults: dict[str, Callable[[], None]] = field(default_factory=dict)
    most: int = sys.maxsize

    def write(self, fd, parts, offset):
        self.faults.get("write", lambda: None)()
        return min(self.most, super().write(fd, beginning(parts, round_up(self.most)), offset))

    def read(self, fd, out, offset):
        self.faults.get("read", lambda: None)()
        return min(self.most, super().read(fd, out[: round_up(self.most)], offset))

    def reserve(self, fd, start, length):
        self.faults.get("reserve", lambda: None)()
        super().reserve(fd, start, length)

    def available(self, fd, directory):
        return self.faults.get("available", lambda: super(Faulty, self).available(fd, directory))()


def failing(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def config(request, tmp_path):
    return Disk(directory=str(tmp_path), direct=request.param)


def check_usable(store, payload):
    """A store that failed has leaked nothing and works on."""
    assert store.used_bytes == 0
    for nbytes in (100, 2 * PIECE + 1):
        slot = store.put(payload(nbytes))
        assert np.array_equal(store.get(slot), payload(nbytes))
        store.delete(slot)
    assert store.used_bytes == 0
    store.close()


@pytest.mark.parametrize("nbytes", [1_000, 3 * PIECE])
@pytest.mark.parametrize("call", ["write", "reserve"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENODEV])
def test_a_device_that_refuses_is_named(config, payload, call, number, nbytes):
    faults = {call: failing(number)}
    store = DiskStore(config, Faulty(faults=faults))
    expected = StoreError if number in (errno.EIO, errno.ENODEV) else StoreFullError
    with pytest.raises(expected, match=errno.errorcode[number]) as caught:
        store.put(payload(nbytes))
    assert type(caught.value) is expected
    assert config.directory in str(caught.value)
    faults.clear()
    check_usable(store, payload)


def test_a_device_that_fills_up_in_the_middle_of_a_record_takes_nothing(config, payload):
    writes = iter(range(10_000))

    def fail_later() -> None:
        if next(writes) >= 3:
            failing(errno.ENOSPC)()

    faults = {"write": fail_later}
    store = DiskStore(config, Faulty(faults=faults, most=PIECE))
    with pytest.raises(StoreFullError):
        store.put(payload(6 * PIECE))
    faults.clear()
    check_usable(store, payload)


def test_no_more_than_the_device_has_left_is_asked_for(config, payload):
    asked = []
    faults = {"available": lambda: 3 * 4096, "reserve": lambda: asked.append(1)}
    store = DiskStore(config, Faulty(faults=faults))
    slot = store.put(payload(2 * 4096))
    with pytest.raises(StoreFullError, match="ENOSPC"):
        store.put(payload(4 * 4096))
    assert len(asked) == 1
    store.delete(slot)
    del faults["available"]
    check_usable(store, payload)


@pytest.mark.parametrize("most", [4097, 4096 + 512, 100_000, PIECE - 1])
def test_short_transfers_are_carried_on(config, payload, most):
    store = DiskStore(config, Faulty(most=most))
    for nbytes in (100, 300_000, PIECE + 5):
        slot = store.put(payload(nbytes))
        assert np.array_equal(store.get(slot), payload(nbytes))
        store.delete(slot)
    check_usable(store, payload)


def test_a_device_that_takes_nothing_is_named(config, payload):
    store = DiskStore(config, Faulty(most=0))
    with pytest.raises(StoreError, match="took 0 of"):
        store.put(payload(5_000))
    assert store.used_bytes == 0
    store.close()


@pytest.mark.parametrize("nbytes", [1_000, 3 * PIECE])
def test_a_read_that_fails_is_named_and_can_be_tried_again(config, payload, nbytes):
    faults = {"read": failing(errno.EIO)}
    store = DiskStore(config, Faulty(faults=faults))
    slot = store.put(payload(nbytes))
    with pytest.raises(StoreError, match=r"reading .* EIO"):
        store.get(slot)
    faults.clear()
    assert np.array_equal(store.get(slot), payload(nbytes))
    store.delete(slot)
    check_usable(store, payload)


@dataclass(frozen=True)
class SlowReads(Syscalls):
    """Reads that say when they begin, and end when they are told to."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def read(self, fd, out, offset):
        self.begun.release()
        assert self.go_on.acquire(timeout=400)
        return super().read(fd, out, offset)


@pytest.mark.parametrize("nbytes", [5_000, 3 * PIECE])
def test_a_record_that_is_being_read_keeps_its_place(config, payload, nbytes):
    slow = SlowReads()
    store = DiskStore(config, slow)
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
    store = DiskStore(config, slow)
    (slab,) = store._slabs
    slot = store.put(payload(5_000))
    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(store.get, slot) for _ in range(2)]
        for _ in reading:
            assert slow.begun.acquire(timeout=400)
        store.close()
        for _ in reading:
            os.fstat(slab._file.fd)
            slow.go_on.release()
            done, reading = wait(reading, return_when=FIRST_COMPLETED)
            assert all(np.array_equal(read.result(), payload(5_000)) for read in done)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(slab._file.fd)


@pytest.mark.parametrize("place", ["none", "file"])
def test_a_directory_that_is_none_is_found_at_open(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=place):
        Disk(directory=str(tmp_path / place)).open()


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_a_directory_without_permission_is_found_at_open(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    user = os.geteuid()
    if user == 0:
        os.chown(tmp_path, 65534, 65534)
        os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match="may not be written to"):
            Disk(directory=str(tmp_path)).open()
    finally:
        os.seteuid(user)
        tmp_path.chmod(stat.S_IRWXU)


def run(script: str, *arguments: str) -> str:
    """Run a script in a fresh process and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_out_of_descriptors_is_named_and_passes(tmp_path):
    script = """
import resource, sys
from tensorstash.errors import StoreError
from tensorstash.stores import Disk
stores = []
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 4096))
try:
    while True:
        stores.append(Disk(directory=sys.argv[1]).open())
except StoreError as error:
    print(error)
stores.pop().close()
Disk(directory=sys.argv[1]).open().close()
"""
    assert "EMFILE" in run(script, str(tmp_path))


def test_a_limit_on_file_size_is_a_full_store(tmp_path):
    script = """
import resource, sys
import numpy as np
from tensorstash.errors import StoreFullError
from tensorstash.stores import Disk
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
for preallocate in (True, False):
    store, slots = DiskStore(Disk(directory=sys.argv[1]), Syscalls(preallocate=preallocate)), []
    try:
        while True:
            slots.append(store.put(np.full(100_000, len(slots), np.uint8)))
    except StoreFullError as error:
        print(len(slots), error)
    assert all((store.get(slot) == value).all() for value, slot in enumerate(slots))
    store.delete(slots.pop())
    slots.append(store.put(np.zeros(100_000, np.uint8)))
"""
    first, second = run(script, str(tmp_path)).splitlines()
    assert first.startswith("10 ")
    assert second.startswith("10 ")
    assert "EFBIG" in first
    assert "EFBIG" in second


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs the right to mount a file system")
@pytest.mark.parametrize("preallocate", [True, False])
def test_a_full_file_system_is_a_full_store(tmp_path, payload, preallocate):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        store = DiskStore(Disk(directory=str(tmp_path)), Syscalls(preallocate=preallocate))
        slots = [store.put(payload(100_000, seed)) for seed in range(10)]
        with pytest.raises(StoreFullError, match="ENOSPC"):
            store.put(payload(100_000))
        assert all(np.array_equal(store.get(slot), payload(100_000, seed)) for seed, slot in enumerate(slots))
        store.delete(slots.pop())
        assert np.array_equal(store.get(store.put(payload(100_000))), payload(100_000))
        store.close()
        assert os.statvfs(tmp_path).f_bfree == os.statvfs(tmp_path).f_blocks
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@dataclass(frozen=True)
class ReservesNothing(Faulty):
    """A file system that reserves no blocks, and counts how often it is asked to."""

    number: int = errno.EOPNOTSUPP
    asked: list[int] = field(default_factory=list)

    def reserve(self, fd, start, length):
        if self.preallocate:
            self.asked.append(length)
            os.pwrite(fd, bytes(5), start)  # as the C library may before it gives up
            failing(self.number)()
        super().reserve(fd, start, length)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_where_no_blocks_can_be_reserved_zeros_are_written_and_it_is_tried_once(config, payload, number):
    calls = ReservesNothing(number=number)
    store = DiskStore(replace(config, direct=False), calls)
    slots = [store.put(payload(PIECE, seed)) for seed in range(5)]
    assert all(np.array_equal(store.get(slot), payload(PIECE, seed)) for seed, slot in enumerate(slots))
    (slab,) = store._slabs
    assert os.fstat(slab._file.fd).st_blocks * 512 >= store.file_bytes == os.fstat(slab._file.fd).st_size
    assert len(calls.asked) == 1
    del slots[:]
    check_usable(store, payload)


def test_a_device_that_takes_its_time_is_asked_again_but_not_for_ever(tmp_path):
    """A write may take nothing, or less than a block; eight times in a row are a failure."""

    @dataclass(frozen=True)
    class Hesitant(Syscalls):
        turns: list[int] = field(default_factory=list)

        def write(self, fd, parts, offset):
            return super().write(fd, beginning(parts, 4096), offset) if self.turns.pop(0) else 0

    data = np.arange(2 * 4096, dtype=np.uint32).view(np.uint8)[: 2 * 4096]
    for turns, is_written in (([0] * 7 + [1] + [0] * 7 + [1], True), ([1] + [0] * 8, False)):
        slab = Slab(str(tmp_path), Hesitant(turns=turns), direct=False, limit_bytes=None)
        extent = slab.take(data.size)
        with nullcontext() if is_written else pytest.raises(StoreError):
            slab.write([data], extent)
        assert not turns
        slab.close()


@pytest.mark.parametrize(("number", "is_an_error"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_only_a_file_system_without_direct_transfers_is_written_to_without_them(
    tmp_path, monkeypatch, number, is_an_error
):
    def refuse(fd, data, offset):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tensorstash.stores.disk.syscalls.os.pwrite", refuse)
    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError) if is_an_error else nullcontext():
        assert Syscalls().enable_direct(file.fileno()) == 0
