"""The compiled functions, built with sanitizers, read and write nothing but their arrays, whatever they are given."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = sysconfig.get_paths()["include"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([*map(str, command)], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=880)


def skip_without_sanitizers(directory: Path) -> None:
    """Skip where no compiler, no headers of Python or no sanitizers are installed, and for no other reason."""
    if shutil.which("gcc") is None or not Path(INCLUDE, "Python.h").exists():
        pytest.skip("no gcc, or no headers of Python")
    source = directory / "nothing.c"
    source.write_text("int nothing;\n")
    if run("gcc", *SANITIZED, "-shared", "-fPIC", source, "-o", directory / "nothing.so").returncode:
        pytest.skip("this gcc has no sanitizers")


@pytest.mark.long
def test_sanitizers_find_nothing_in_random_and_hostile_calls(tmp_path: Path) -> None:
    skip_without_sanitizers(tmp_path)
    (extension,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    flags = [*extension["extra-compile-args"], *SANITIZED, "-shared", "-fPIC", f"-I{INCLUDE}", "-Werror"]
    module = tmp_path / "_native.so"
    built = run("gcc", *flags, *extension["sources"], "-o", module)
    assert built.returncode == 0, built.stderr
    preloaded = run("gcc", "-print-file-name=libasan.so").stdout.strip()
    done = run(
        sys.executable,
        ROOT / "tests" / "kernels" / "fuzz.py",
        module,
        "--rounds=60",
        LD_PRELOAD=preloaded,
        ASAN_OPTIONS="detect_leaks=0",  # Python's own, which are many
        PYTHONMALLOC="malloc",
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "affine_encode" in done.stdout
