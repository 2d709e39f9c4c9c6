"""The compiled functions are there where they can be, and nothing needs them."""

import dataclasses
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tensorstash import kernels, native
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


def test_every_function_on_arrays_is_compiled() -> None:
    if native.load() is None:
        pytest.skip("nothing is compiled here")
    names = [field.name for field in dataclasses.fields(kernels.Kernels)]
    assert not [name for name in names if getattr(kernels.active, name) is getattr(kernels.DEFINED, name)]


def test_no_source_is_newer_than_the_module() -> None:
    if native.functions is None:
        pytest.skip("nothing is compiled here")
    compiled = Path(sys.modules["tensorstash._native"].__file__ or "").stat().st_mtime
    newer = [path.name for path in (ROOT / "native").iterdir() if path.stat().st_mtime > compiled]
    assert not newer, f"install again: {newer} changed since the module was compiled"


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
def test_what_they_return_can_be_looked_at() -> None:
    """By a debugger, say; in a process of its own, since what is not set up ends it."""
    look = """
import torch

import tensorstash as ts

with ts.stash(ts.Keep(), framework="torch") as session:
    pack, unpack = session._hooks()
    handle = pack(torch.ones(3))
print(type(handle))
print(handle, handle == pack(torch.ones(3)), len({handle, unpack}))
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<class 'tensorstash._native.Kept'>\n<tensorstash._native.Kept object at"), (
        done.stdout
    )


def test_a_broken_module_is_an_error_and_not_a_missing_one(tmp_path: Path) -> None:
    package = tmp_path / "tensorstash"
    shutil.copytree(ROOT / "tensorstash", package, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    # An editable installation would find the module of the installed package.
    program = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
from tensorstash import native
print(native.load())
"""
    run = [sys.executable, "-c", program]
    without = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert without.stdout == "None\n", without.stderr
    (package / "_native.py").write_text("raise ImportError('of another Python')\n")
    broken = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "of another Python" in broken.stderr
