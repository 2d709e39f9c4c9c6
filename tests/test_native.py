"""The compiled functions are there where they can be, and nothing needs them."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tensorstash import kernels
from tensorstash.host import native
from tensorstash.kernels.groups import Groups
from tests.documents import ROOT

compiled = pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")


def test_they_are_built_where_there_is_a_compiler() -> None:
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if shutil.which("cc") is None or not header.exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert native.functions is not None, "the package was installed without its compiled functions"


@compiled
def test_no_source_is_newer_than_the_module() -> None:
    made = Path(sys.modules["tensorstash.host._native"].__file__ or "").stat().st_mtime
    newer = [path.name for path in (ROOT / "native").iterdir() if path.stat().st_mtime > made]
    assert not newer, f"install again: {newer} changed since the module was compiled"


def test_a_broken_module_is_an_error_and_not_a_missing_one(tmp_path: Path) -> None:
    package = tmp_path / "tensorstash"
    shutil.copytree(ROOT / "tensorstash", package, ignore=shutil.ignore_patterns("*.so", "*.pyd"))
    # An editable installation would find the module of the installed package.
    program = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder)]
from tensorstash.host import native
from tensorstash.kernels.groups import Groups
print(native.functions)
"""
    run = [sys.executable, "-c", program]
    without = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert without.stdout == "None\n", without.stderr
    (package / "host" / "_native.py").write_text("raise ImportError('of another Python')\n")
    broken = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "of another Python" in broken.stderr


@compiled
def test_every_function_on_arrays_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    spied = Mock(spec=native.functions)
    monkeypatch.setattr(native, "functions", spied)
    wide, narrow, groups = np.zeros(4, np.float32), np.zeros(4, np.uint16), Groups.of((4,), 2)
    kernels.affine_encode(wide, narrow, "float32", groups, 8, None)
    kernels.affine_decode(narrow, wide, "float32", groups, 8)
    kernels.convert(wide, "float32", narrow, "bfloat16")
    kernels.convert(narrow, "bfloat16", wide, "float32")
    called = [name for name, _, _ in spied.method_calls]
    assert called == ["affine_encode", "affine_decode", "narrow_floats", "widen_floats"]
