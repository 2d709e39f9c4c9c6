"""The allocator's settings, in processes of their own: they cannot be undone."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tensorstash.host import allocator

ON_GLIBC = platform.libc_ver()[0] == "glibc"

FRAGMENT = """
import sys
import numpy as np
from tensorstash.host import allocator

if sys.argv[1] == "returned":
    assert allocator.return_freed_memory()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.malloc.argtypes = [ctypes.c_size_t]
SIZE = 4 << 20
warm = libc.malloc(SIZE * 4)
libc.free(warm)  # glibc raises its own threshold when a mapped block is freed
blocks = [libc.malloc(SIZE) for _ in range(40)]
for block in blocks:
    ctypes.memset(block, 1, SIZE)
full = resident()
for block in blocks[:-1]:
    libc.free(block)
print((full - resident()) / (39 * SIZE))
"""


PLACES = """
import mmap, sys
with open(sys.argv[1], "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
from tensorstash.host.arrays import aligned_empty, payload_empty, whole_pages
from tensorstash.host.pool import POOL

MIB = 2**20
payload = payload_empty(4 * MIB)
tensors = [aligned_empty(4 * MIB), whole_pages(4 * MIB)]
print(POOL.take_stock()[0] // MIB)
del payload
tensors.append(aligned_empty(4 * MIB))
print(POOL.take_stock()[0] // MIB)
"""


def run(code, *arguments, **environment):
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env | environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(not ON_GLIBC, reason="only glibc keeps freed blocks in its heap")
def test_freed_blocks_leave_the_process_once_asked_and_not_before():
    assert float(run(FRAGMENT, "as it is")) < 0.5
    assert float(run(FRAGMENT, "returned")) > 0.9


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to advise elsewhere")
def test_what_the_user_has_set_is_left_alone():
    for name in ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_"):
        assert allocator.advised_environment({name: "mine", "OTHER": "1"}) == {name: "mine", "OTHER": "1"}


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to advise elsewhere")
def test_an_installed_allocator_is_preferred_to_the_threshold(monkeypatch):
    monkeypatch.setattr(allocator, "installed_allocator", lambda: "/usr/lib/libtcmalloc_minimal.so.4")
    assert allocator.advised_environment({}) == {"LD_PRELOAD": "/usr/lib/libtcmalloc_minimal.so.4"}
    monkeypatch.setattr(allocator, "installed_allocator", lambda: None)
    assert allocator.advised_environment({}) == {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Put copies of a real library where the system's list names them, and others where a search path does."""
    head = Path(sys.executable).read_bytes()[:4096]
    for name in ("first", "second", "searched"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "libtcmalloc_minimal.so.4").write_bytes(head)
        (tmp_path / name / "libtcmalloc_minimal.so.4").chmod(0o644)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "searched"))
    paths = [str(tmp_path / name / "libtcmalloc_minimal.so.4") for name in ("first", "second")]
    monkeypatch.setattr(allocator, "_listed_libraries", lambda: ["/lib/libc.so.6", *paths])
    return [Path(path) for path in paths]


def test_an_allocator_is_named_by_its_absolute_path_and_search_paths_have_no_say(listed):
    assert allocator.installed_allocator() == str(listed[0])


@pytest.mark.parametrize("flaw", ["writable", "in a writable folder", "another processor", "gone"])
def test_an_allocator_that_anybody_could_replace_or_that_does_not_fit_is_left_out(listed, flaw):
    first, second = listed
    if flaw == "writable":
        first.chmod(0o666)
    elif flaw == "in a writable folder":
        first.parent.chmod(0o777)
    elif flaw == "another processor":
        head = bytearray(first.read_bytes())
        head[18:20] = b"\x08\x00" if head[18:20] != b"\x08\x00" else b"\x28\x00"
        first.write_bytes(head)
    else:
        first.unlink()
    assert allocator.installed_allocator() == str(second)


@pytest.mark.skipif(not os.path.exists("/sbin/ldconfig"), reason="the system keeps no list of libraries")
def test_the_list_of_the_system_holds_absolute_paths_whatever_the_environment_says(tmp_path, monkeypatch):
    before = allocator._listed_libraries()
    (tmp_path / "ldconfig").write_text("#!/bin/sh\necho 'libtcmalloc.so (libc6) => /tmp/evil'")
    (tmp_path / "ldconfig").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert allocator._listed_libraries() == before
    assert before
    assert all(os.path.isabs(path) for path in before)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no list of what is mapped elsewhere")
def test_under_an_allocator_that_keeps_pages_tensors_are_its_own_and_payloads_the_pools(tmp_path):
    library = tmp_path / "libtcmalloc_minimal.so.4"
    library.write_bytes(bytes(4096))
    assert run(PLACES, str(library)) == "4\n4\n"  # the payload alone; then the tensor that has taken its idle place


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to see elsewhere")
def test_a_setting_from_outside_is_seen():
    code = "from tensorstash import allocator; print(allocator.returns_memory())"
    assert run(code) == "False\n"
    assert run(code, MALLOC_MMAP_THRESHOLD_="1048576") == "True\n"


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to advise elsewhere")
def test_statistics_advise_on_the_allocator_until_it_is_set():
    code = """
import sys, numpy as np, tensorstash as ts, tensorstash.reference as ref
from tensorstash.host import allocator
stash = ts.stash(ts.Compress(), framework="reference", min_bytes=0)
print(stash.stats().advice)
with stash:
    ref.tensor([1.0], requires_grad=True).exp().exp()
print("python -m tensorstash" in stash.stats().advice, "python -m tensorstash" in str(stash.stats()))
allocator.return_freed_memory()
print(stash.stats().advice)
"""
    assert run(code) == "\nTrue True\n\n"


def test_the_launcher_runs_the_program_with_its_arguments_and_exit_status(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import os, sys; print(sys.argv[1:]); sys.exit(3)")
    done = subprocess.run(
        [sys.executable, "-m", "tensorstash", str(script), "--flag", "x y"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "['--flag', 'x y']\n")
    assert done.stderr.startswith("tensorstash: ")


SHOWS_ITS_OPTIONS = """
import sys, warnings
names = [name for name in dir(sys.flags) if name.islower() and not name.startswith(("_", "n_", "utf8"))]
flags = {name: getattr(sys.flags, name) for name in names if name not in ("count", "index")}
sys._xoptions.pop("utf8", None)  # Python itself hands on a locale that it has changed: the encoding tells both
print(flags, sys.getfilesystemencoding(), sys._xoptions, warnings.filters[0], sys.argv)
"""


@pytest.mark.parametrize(
    ("options", "module"),
    [
        ([], ["-m", "tensorstash"]),
        (["-X", "dev", "-Wignore::FutureWarning", "-O", "-u", "-b"], ["-m", "tensorstash"]),
        (["-W", "error::FutureWarning", "-Xutf8", "-B", "-s"], ["-Om", "tensorstash"]),
        (["-X", "dev"], ["-Omtensorstash"]),
    ],
)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8", None])
def test_the_launcher_hands_on_the_options_of_the_interpreter(tmp_path, options, module, locale):
    script = tmp_path / "program.py"
    script.write_text(SHOWS_ITS_OPTIONS)
    others = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    environment = others if locale is None else {**others, "LC_ALL": locale}

    def run_python(*command):
        command = [sys.executable, *command, str(script), "-m", "x"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    letters = ["-O"] if module[0].startswith("-O") else []
    assert run_python(*options, *module) == run_python(*options, *letters)


def test_the_launcher_without_a_program_says_how_it_is_used():
    done = subprocess.run([sys.executable, "-m", "tensorstash"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "python -m tensorstash SCRIPT" in done.stderr
