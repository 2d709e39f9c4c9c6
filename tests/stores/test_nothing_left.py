"""No file, directory or descriptor outlives its process, and processes in one directory do not meet."""

import errno
import os
import random
import secrets
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tensorstash.errors import StoreError
from tensorstash.stores import Disk
from tensorstash.stores.disk.scratch_file import open_private_file, remove_stale
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, modes and locks of POSIX")

LEVELS = {
    "unnamed": Syscalls(),
    "unlinked": Syscalls(unnamed=False),
    "named": Syscalls(unnamed=False, unlink_open=False),
}

OPEN = f"""
import os, sys
import numpy as np
from tensorstash.stores import Disk
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls
LEVELS = {LEVELS!r}
def open_store():
    return DiskStore(Disk(directory=sys.argv[1]), LEVELS[sys.argv[2]])
"""


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def start(script: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen, said: str = "") -> str:
    output, errors = process.communicate(said, timeout=400)
    assert process.returncode == 0, errors
    return output


def entries(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


def test_only_the_last_resort_has_a_name_and_it_is_private(tmp_path, level):
    store = DiskStore(Disk(directory=str(tmp_path)), LEVELS[level])
    store.put(np.zeros(10, np.uint8))
    slab = store.slab
    assert stat.S_IMODE(os.fstat(slab.file.fd).st_mode) == 0o600
    assert not os.get_inheritable(slab.file.fd)
    if level == "named":
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    else:
        assert entries(tmp_path) == []
        assert os.fstat(slab.file.fd).st_nlink == 0
    store.close()
    assert entries(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="no file is ever unnamed here")
def test_a_file_system_without_unnamed_files_is_found_out(tmp_path, monkeypatch):
    real = os.open

    def open_named(path, flags, *arguments, **keywords):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return real(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", open_named)
    open_private_file(str(tmp_path), Syscalls()).close()
    assert entries(tmp_path) == []


NAME = f"tensorstash-{'0' * 16}.tmp"
"""Of a file that is ours."""


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_file_that_somebody_else_has_made_is_not_taken_for_ones_own(tmp_path, monkeypatch, kind):
    target = tmp_path / ("target" if "link" in kind else NAME)
    if kind != "dangling link":
        target.write_text("theirs")
    if kind != "file":
        (tmp_path / NAME).symlink_to(target)
    monkeypatch.setattr("tensorstash.stores.disk.scratch_file.remove_stale", lambda directory: None)
    monkeypatch.setattr(secrets, "token_hex", lambda nbytes: "0" * 2 * nbytes)
    with pytest.raises(FileExistsError):
        open_private_file(str(tmp_path), Syscalls(unnamed=False))
    if kind == "dangling link":
        assert not target.exists()
    else:
        assert target.read_text() == "theirs"


def test_a_symbolic_link_in_place_of_what_was_left_is_not_followed(tmp_path, monkeypatch):
    theirs, locked = tmp_path / "theirs", []
    theirs.write_text("theirs")
    (tmp_path / NAME).symlink_to(theirs)
    before = entries(tmp_path)
    monkeypatch.setattr("fcntl.flock", lambda fd, how: locked.append(fd))
    remove_stale(str(tmp_path))
    assert locked == [], "what the link leads to was opened and locked"
    assert entries(tmp_path) == before
    assert theirs.read_text() == "theirs"


def test_a_process_that_is_killed_at_any_moment_leaves_nothing_for_long(tmp_path, level):
    script = """
store = open_store()
while True:
    slots = [store.put(np.full(n, 7, np.uint8)) for n in (10, 5_000, 9_000_000)]
    print(flush=True)
    for slot in slots:
        store.get(slot)
        store.delete(slot)
    print(flush=True)
"""
    moments = random.Random(0)
    for _ in range(2):
        process = start(script, tmp_path, level)
        for _ in range(moments.randint(1, 9)):
            assert process.stdout.readline() == "\n"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=400)
        assert level == "named" or entries(tmp_path) == []
        DiskStore(Disk(directory=str(tmp_path)), LEVELS[level]).close()
        assert entries(tmp_path) == []


def test_a_process_that_is_killed_while_it_opens_leaves_nothing_for_long(tmp_path, level):
    """Kill at each event that the interpreter audits between the start and the end of opening and closing."""
    script = """
import signal
from tensorstash.stores.disk.scratch_file import remove_stale
def on_event(event, arguments):
    global left
    if left and event.split(".")[0] in {"open", "os", "fcntl", "tempfile"}:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
left = 0
sys.addaudithook(on_event)
kill_at = killed = 0
while killed == kill_at:
    kill_at += 1
    if (child := os.fork()) == 0:
        try:
            left = kill_at
            open_store().close()
            left = 0
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    killed += status == signal.SIGKILL
    remove_stale(sys.argv[1])
    assert os.listdir(sys.argv[1]) == []
print(killed)
"""
    killed = int(finish(start(script, tmp_path, level)))
    assert killed >= (3 if level == "unnamed" else 6)


def test_what_a_live_process_uses_is_not_removed(tmp_path):
    script = """
store = open_store()
slot = store.put(np.full(5_000_000, 9, np.uint8))
print(flush=True)
sys.stdin.readline()
assert (store.get(slot) == 9).all()
store.close()
"""
    process = start(script, tmp_path, "named")
    assert process.stdout.readline() == "\n"
    before = entries(tmp_path)
    assert len(before) == 1
    remove_stale(str(tmp_path))
    Disk(directory=str(tmp_path)).open().close()
    assert entries(tmp_path) == before
    finish(process, "\n")
    assert entries(tmp_path) == []


def test_only_own_files_of_the_right_name_are_swept(tmp_path):
    for name in ("tensorstash-notes", "tensorstash-notes.tmp", "other-abc.tmp", f"{NAME}.bak"):
        (tmp_path / name).touch()
    (tmp_path / NAME.replace("0", "a")).mkdir()
    os.mkfifo(tmp_path / NAME.replace("0", "b"))
    before = entries(tmp_path)
    (tmp_path / NAME).touch()
    remove_stale(str(tmp_path))
    assert entries(tmp_path) == before
    if os.geteuid() == 0:
        others = tmp_path / NAME
        others.touch()
        os.chown(others, 65534, 65534)
        remove_stale(str(tmp_path))
        assert others.exists()


def test_a_fork_stores_in_files_of_its_own_and_harms_nothing(tmp_path, level):
    script = """
from tensorstash.errors import SlotGoneError, StoreError
store = open_store()
slab = store.slab
slot = store.put(np.full(9_000_000, 3, np.uint8))
doomed = store.put(np.full(100, 4, np.uint8))
names = os.listdir(sys.argv[1])
store._lock.acquire()  # as a thread may have, which the child does not have
if (child := os.fork()) == 0:
    try:
        store.get(slot)
    except StoreError as error:
        assert type(error) is StoreError and "forked" in str(error), error
    else:
        os._exit(1)
    try:
        os.fstat(slab.file.fd)
    except OSError:
        pass
    else:
        os._exit(1)
    assert store.used_bytes == 0
    own = store.put(np.full(9_000_000, 5, np.uint8))
    assert (store.get(own) == 5).all()
    store.delete(doomed)
    store.close()
    del store
    sys.exit(0)
store._lock.release()
_, status = os.waitpid(child, 0)
assert status == 0, status
assert os.listdir(sys.argv[1]) == names
assert (store.get(slot) == 3).all()
assert (store.get(doomed) == 4).all()
store.put(np.zeros(10_000_000, np.uint8))
assert (store.get(slot) == 3).all()
"""
    finish(start(script, tmp_path, level))
    assert entries(tmp_path) == []


def test_a_store_that_nobody_closes_leaves_nothing_at_exit(tmp_path, level):
    script = """
store = open_store()
store.put(np.full(9_000_000, 3, np.uint8))
cycle = [store]
cycle.append(cycle)
"""
    finish(start(script, tmp_path, level))
    assert entries(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="no file is ever unnamed here")
def test_a_file_without_a_name_never_gets_one(tmp_path):
    file = open_private_file(str(tmp_path), Syscalls())
    descriptors = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        with pytest.raises(FileNotFoundError):
            os.link(str(file.fd), tmp_path / "named", src_dir_fd=descriptors, follow_symlinks=True)
    finally:
        os.close(descriptors)
        file.close()
    assert entries(tmp_path) == []


def test_processes_that_open_and_close_in_one_directory_never_collide(tmp_path):
    script = """
for step in range(60):
    value = (os.getpid() + step) % 251
    store = open_store()
    slots = [store.put(np.full(n, value, np.uint8)) for n in (100, 40_000)]
    assert all((store.get(slot) == value).all() for slot in slots)
    store.close()
"""
    processes = [start(script, tmp_path, level) for level in ("named", "named", "unlinked", "unnamed")]
    for process in processes:
        finish(process)
    assert entries(tmp_path) == []


def test_threads_that_open_and_sweep_at_once_never_lose_a_file(tmp_path):
    named, lost = LEVELS["named"], []

    def work() -> None:
        for _ in range(150):
            file = open_private_file(str(tmp_path), named)
            if os.fstat(file.fd).st_nlink != 1:
                lost.append(file)
            file.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost
    assert entries(tmp_path) == []


def test_opening_again_and_again_leaks_nothing(tmp_path, level):
    """Descriptors are counted around every test."""
    for _ in range(50):
        DiskStore(Disk(directory=str(tmp_path)), LEVELS[level]).close()
        with pytest.raises(StoreError):
            DiskStore(Disk(directory=str(tmp_path / "none")), LEVELS[level])
    assert entries(tmp_path) == []
