"""The compiled functions are there where they can be, and nothing needs them."""

import dataclasses
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tensorstash import kernels
from tensorstash.host import native
from tensorstash.kernels.compiled import Extension

ROOT = Path(__file__).resolve().parent.parent


def test_they_are_built_where_there_is_a_compiler() -> None:
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if shutil.which("cc") is None or not header.exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert native.load() is not None, "the package was installed without its compiled functions"


def test_every_declared_function_is_compiled() -> None:
    if native.functions is None:
        pytest.skip("nothing is compiled here")
    hooks, arithmetic, compiled = (
        {name for name in vars(kind) if not name.startswith("_")}
        for kind in (native.Functions, Extension, native.load())
    )
    assert hooks | arithmetic == compiled


def test_no_source_is_newer_than_the_module() -> None:
    if native.functions is None:
        pytest.skip("nothing is compiled here")
    compiled = Path(sys.modules["tensorstash.host._native"].__file__ or "").stat().st_mtime
    newer = [path.name for path in (ROOT / "native").iterdir() if path.stat().st_mtime > compiled]
    assert not newer, f"install again: {newer} changed since the module was compiled"


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
def test_what_they_return_can_be_looked_at() -> None:
    """By a debugger, say; in a process of its own, since what is not set up ends it."""
    look = """
import torch

import tensorstash as ts

with ts.stash(ts.Keep(), framework="torch") as session:
    pack, unpack = session._session._hooks()
    handle = pack(torch.ones(3))
print(type(handle))
print(handle, len({handle, unpack}))
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<class 'tuple'>\n(<tensorstash.engine.state.SessionState object at"), done.stdout


REENTERED = """
import sys, threading
from collections import defaultdict
from itertools import count
from types import CellType, SimpleNamespace
from tensorstash.host import native

moment, inner = sys.argv[1], []
backwards = SimpleNamespace(release=False)
errors = []
unpack = native.functions.unpacking(CellType, print, errors.append, backwards, lambda tensor: tensor)

def come_back():
    if not inner:
        inner.append(None)
        backwards.release = moment != "asked again"
        inner[0] = unpack(handle)

class Saved:
    def __del__(self):
        if moment == "freed":
            unpack(handle)

class State:
    def version(self, tensor):
        if moment in ("version", "asked again"):
            come_back()
        return 7 if moment == "another version" else 0
    @property
    def was_asked(self): ...
    @was_asked.setter
    def was_asked(self, value):
        if moment == "asked":
            come_back()

def restore_slowly(handle):
    come_back()
    return handle[1]

state = State()
sizes = defaultdict(lambda: defaultdict(count))
restore = native.functions.restoring(restore_slowly)
pack = native.functions.keeping(sizes, 0, defaultdict(count), lambda x: 8, state, lambda x: Saved(), lambda x: 0, print)
scope = SimpleNamespace(ready=True, pack=pack, unpack=restore)
scopes = {threading.get_ident(): scope}
handle = native.functions.packing(scopes, CellType, print, print)(object())
if moment == "freed":
    backwards.release = True
first = unpack(handle)
if moment == "freed":
    del first
backwards.release = False
second = unpack(handle)
print(moment, type(first).__name__ if moment != "freed" else "gone", second, *map(repr, errors))
"""


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
@pytest.mark.parametrize("moment", ["version", "another version", "asked", "asked again", "freed"])
def test_a_handle_may_be_asked_for_and_released_while_it_is_asked_for(moment: str) -> None:
    done = subprocess.run([sys.executable, "-c", REENTERED, moment], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    released = "ValueError('Cell is empty')"
    assert done.stdout.startswith(f"{moment} ")
    assert (released in done.stdout) == (moment != "asked again")


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
def test_what_pack_has_not_made_is_refused_by_name() -> None:
    failures: list[BaseException] = []
    box = type((lambda: failures).__closure__[0])  # type: ignore[index]
    unpack = native.functions.unpacking(box, print, failures.append, None, print)
    for contents in (3, (), (1, 2, 3)):
        unpack(box(contents))
    assert [type(failure) for failure in failures] == [TypeError] * 3


def test_a_broken_module_is_an_error_and_not_a_missing_one(tmp_path: Path) -> None:
    package = tmp_path / "tensorstash"
    shutil.copytree(ROOT / "tensorstash", package, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    # An editable installation would find the module of the installed package.
    program = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
from tensorstash.host import native
print(native.load())
"""
    run = [sys.executable, "-c", program]
    without = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert without.stdout == "None\n", without.stderr
    (package / "host" / "_native.py").write_text("raise ImportError('of another Python')\n")
    broken = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "of another Python" in broken.stderr


def test_every_function_on_arrays_is_compiled() -> None:
    if native.load() is None:
        pytest.skip("nothing is compiled here")
    names = [field.name for field in dataclasses.fields(kernels.Kernels)]
    assert not [name for name in names if getattr(kernels.active, name) is getattr(kernels.DEFINED, name)]
