"""No file, directory or descriptor outlives its process, and processes in one directory do not meet."""

import os
import stat
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tensorstash.stores import Disk
from tests.processes import Program, output_of, outputs_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, modes and locks of POSIX")

OPEN = """
import os, sys, tempfile
import numpy as np
from tensorstash.stores import Disk
tempfile._O_TMPFILE_WORKS = sys.argv[2] == "unnamed"
def open_store():
    return Disk(directory=sys.argv[1]).open()
"""


@pytest.fixture(params=["unnamed", "unlinked"])
def level(request, monkeypatch):
    """Files that never have a name, and files that lose it at once where the file system has no others."""
    monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", request.param == "unnamed")
    return request.param


def entries(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


@pytest.mark.usefixtures("level")
def test_the_file_has_no_name_never_gets_one_and_is_private(tmp_path):
    store = Disk(directory=str(tmp_path)).open()
    store.put(np.zeros(10, np.uint8))
    found = os.fstat(store.slab.file.fileno())
    assert (stat.S_IMODE(found.st_mode), found.st_nlink) == (0o600, 0)
    assert not os.get_inheritable(store.slab.file.fileno())
    descriptors = os.open("/dev/fd", os.O_RDONLY)
    with pytest.raises(OSError):
        os.link(str(store.slab.file.fileno()), tmp_path / "named", src_dir_fd=descriptors, follow_symlinks=True)
    os.close(descriptors)
    assert entries(tmp_path) == []
    store.close()


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="no file is ever unnamed here")
def test_a_process_that_is_killed_while_it_opens_leaves_nothing(tmp_path):
    """Kill at each event that the interpreter audits between the start and the end of opening and closing."""
    script = """
import signal
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
    assert os.listdir(sys.argv[1]) == []
print(killed)
"""
    assert int(output_of(OPEN + script, tmp_path, "unnamed")) >= 1


def test_in_a_fork_a_store_is_closed_and_harms_nothing(tmp_path, level):
    script = """
from tensorstash.errors import SlotGoneError
from tests.processes import locks_held
store = open_store()
slab = store.slab
slot = store.put(np.full(9_000_000, 3, np.uint8))
doomed = store.put(np.full(100, 4, np.uint8))
names = os.listdir(sys.argv[1])
with locks_held():
    if (child := os.fork()) == 0:
        for refused in (lambda: store.get(slot), lambda: store.put(np.full(9_000_000, 5, np.uint8))):
            try:
                refused()
            except SlotGoneError as error:
                assert f"forked process: its records are in process {os.getppid()}" in str(error), error
            else:
                os._exit(1)
        assert slab.file.closed
        assert store.used_bytes == 0
        store.delete(doomed)
        store.close()
        del store
        sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert os.listdir(sys.argv[1]) == names
assert (store.get(slot) == 3).all()
assert (store.get(doomed) == 4).all()
store.put(np.zeros(10_000_000, np.uint8))
assert (store.get(slot) == 3).all()
"""
    output_of(OPEN + script, tmp_path, level)
    assert entries(tmp_path) == []


def test_processes_that_open_and_close_in_one_directory_never_collide(tmp_path):
    script = """
for step in range(20):
    value = (os.getpid() + step) % 251
    store = open_store()
    slots = [store.put(np.full(n, value, np.uint8)) for n in (100, 40_000)]
    assert all((store.get(slot) == value).all() for slot in slots)
    store.close()
"""
    outputs_of(*(Program(OPEN + script, tmp_path, level) for level in ("unlinked", "unlinked", "unnamed")))
    assert entries(tmp_path) == []
