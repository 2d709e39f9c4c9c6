"""The allocator's settings, in processes of their own: they cannot be undone."""

import os
import platform
import subprocess
import sys

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


def run_whole(code, *arguments, **environment):
    ours = ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", allocator.CHOICE)
    env = {name: value for name, value in os.environ.items() if name not in ours} | environment
    return subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=True)


def run(code, *arguments, **environment):
    return run_whole(code, *arguments, **environment).stdout


@pytest.mark.skipif(not ON_GLIBC, reason="only glibc keeps freed blocks in its heap")
def test_freed_blocks_leave_the_process_once_asked_and_not_before():
    assert float(run(FRAGMENT, "as it is")) < 0.5
    assert float(run(FRAGMENT, "returned")) > 0.9


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to advise elsewhere")
def test_what_the_user_has_set_is_left_alone():
    tunables = "glibc.malloc.mmap_threshold=1"
    theirs = {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_MMAP_THRESHOLD_": "mine", "GLIBC_TUNABLES": tunables}
    for name, value in {**theirs, allocator.CHOICE: "leave"}.items():
        assert allocator.advised_environment({name: value, "OTHER": "1"}) == {name: value, "OTHER": "1"}
    assert allocator.advised_environment({"LD_PRELOAD": "libother.so"}) != {"LD_PRELOAD": "libother.so"}


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to advise elsewhere")
def test_where_mimalloc_is_not_installed_freed_blocks_leave_and_are_huge_pages(monkeypatch):
    monkeypatch.setattr(allocator, "mimalloc_library", lambda: None)
    advised = allocator.advised_environment({"GLIBC_TUNABLES": "mine=1"})
    assert advised == {"GLIBC_TUNABLES": "mine=1:glibc.malloc.hugetlb=1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    assert allocator.advised_environment(advised) == advised
    assert float(run(FRAGMENT, "as it is", **advised)) > 0.9


@pytest.mark.skipif(not ON_GLIBC, reason="there is nothing to preload elsewhere")
def test_the_launcher_preloads_mimalloc_in_front_of_other_libraries():
    library = allocator.mimalloc_library()
    assert library is not None, "the test group installs it"
    assert allocator.advised_environment({"LD_PRELOAD": "libother.so"}) == {"LD_PRELOAD": f"{library}:libother.so"}
    code = "from tensorstash.host import pages, allocator as a; print(pages.preloaded_allocator(), a.returns_memory())"
    launched = allocator.advised_environment({})
    assert launched == {"LD_PRELOAD": library}
    assert run(code, **launched) == "mimalloc True\n"


def test_a_library_whose_path_the_linker_would_split_is_not_preloaded(tmp_path, monkeypatch):
    class File:
        name = "libmimalloc.so"

        def locate(self):
            return tmp_path / "with space" / self.name

    monkeypatch.setattr(allocator.metadata, "files", lambda name: [File()])
    assert allocator.mimalloc_library() is None


POLICY = """
import os, sys, logging
logging.basicConfig(level=logging.INFO)
import numpy as np, tensorstash as ts, tensorstash.reference as ref
from tensorstash.host import allocator
def step(policy):
    stash = ts.stash(policy, framework="reference", min_bytes=0)
    with stash:
        loss = ref.tensor([1.0], requires_grad=True).exp().exp()
    loss.backward()
step(ts.Keep())
print(allocator.returns_memory(), os.environ.get("MALLOC_MMAP_THRESHOLD_"))
step(ts.Compress())
step(ts.Compress())
print(allocator.returns_memory(), os.environ.get("MALLOC_MMAP_THRESHOLD_"))
"""


@pytest.mark.skipif(not ON_GLIBC, reason="only glibc keeps freed blocks in its heap")
@pytest.mark.parametrize(
    ("environment", "printed", "logged"),
    [
        ({}, "False None\nTrue 1048576\n", 1),
        ({allocator.CHOICE: "leave"}, "False None\nFalse None\n", 0),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=9"}, "True None\nTrue None\n", 0),
    ],
    ids=["as it is", "left alone", "tunables"],
)
def test_the_first_policy_that_frees_host_memory_sets_the_allocator_once(environment, printed, logged):
    done = run_whole(POLICY, **environment)
    assert done.stdout == printed
    assert done.stderr.count("glibc maps blocks") == logged


@pytest.mark.skipif(sys.platform != "linux", reason="there is no list of what is mapped elsewhere")
def test_under_an_allocator_that_keeps_pages_tensors_are_its_own_and_payloads_the_pools(tmp_path):
    library = tmp_path / "libtcmalloc_minimal.so.4"
    library.write_bytes(bytes(4096))
    assert run(PLACES, str(library)) == "4\n4\n"  # the payload alone; then the tensor that has taken its idle place


SHOWS_ITS_OPTIONS = """
import sys, warnings
names = [name for name in dir(sys.flags) if name.islower() and not name.startswith(("_", "n_", "utf8"))]
flags = {name: getattr(sys.flags, name) for name in names if name not in ("count", "index")}
sys._xoptions.pop("utf8", None)  # Python itself hands on a locale that it has changed: the encoding tells both
print(flags, sys.getfilesystemencoding(), sys._xoptions, warnings.filters[0], sys.argv)
"""


@pytest.mark.parametrize(
    ("options", "module", "locale"),
    [
        (["-X", "dev", "-Wignore::FutureWarning", "-O", "-u", "-b"], ["-m", "tensorstash"], "C"),
        (["-W", "error::FutureWarning", "-Xutf8", "-B", "-s"], ["-Om", "tensorstash"], None),
    ],
)
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
