"""The compiled functions agree with NumPy, and read and write nothing but their arrays, whatever they are given."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tensorstash.host import native

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = sysconfig.get_paths()["include"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([*map(str, command)], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=880)


def assert_fuzzed(module: object, rounds: int, **environment: str) -> None:
    fuzz = ROOT / "tests" / "kernels" / "fuzz.py"
    done = run(sys.executable, fuzz, module, f"--rounds={rounds}", OMP_NUM_THREADS="1", **environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "affine_encode" in done.stdout


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
    # Python's own leaks are many.
    assert_fuzzed(module, 40, LD_PRELOAD=preloaded, ASAN_OPTIONS="detect_leaks=0", PYTHONMALLOC="malloc")


@pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")
def test_what_is_installed_gives_the_bits_of_numpy() -> None:
    assert_fuzzed(native.functions.__file__, 200)
