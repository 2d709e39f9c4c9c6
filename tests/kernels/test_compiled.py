"""The compiled functions agree with NumPy, and read and write nothing but their arrays, whatever they are given."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tensorstash.codecs import Affine
from tensorstash.host import native
from tensorstash.host.arrays import Array
from tensorstash.testing.contents import dense_spec
from tests.documents import ROOT
from tests.samples import IS_LONG

INCLUDE = sysconfig.get_paths()["include"]
SANITIZED = ["-g1", "-O1" if IS_LONG else "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]

compiled = pytest.mark.skipif(native.functions is None, reason="nothing is compiled here")


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


@compiled
def test_what_is_installed_gives_the_bits_of_numpy() -> None:
    assert_fuzzed(native.functions.__file__, 200)


def in_numpy(call: object, *arguments: object) -> Array:
    """Return what a method of a codec gives where nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "functions", None)
        array: Array = call(*arguments)  # type: ignore[operator]
        return array


@compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_number_of_16_bits_comes_back_as_in_numpy(dtype: str) -> None:
    """Of float32, all with those upper 16 bits."""
    spec = dense_spec((512, 128), dtype)
    data = np.arange(1 << 16, dtype=np.uint16).view(dense_spec((1,), "bfloat16").carrier)
    bits = data.view(np.uint16)
    carrier = (bits.astype(np.uint32) << 16).view("f4") if dtype == "float32" else bits.view(spec.carrier)
    for order in (np.arange(1 << 16), np.random.default_rng(0).permutation(1 << 16)):
        array = carrier[order].reshape(spec.shape)
        for bits_per_code in (2, 4, 8):
            codec = Affine(bits=bits_per_code)
            payload = codec.encode(array, spec)
            assert payload.tobytes() == in_numpy(codec.encode, array, spec).tobytes()
            assert codec.decode(payload, spec).tobytes() == in_numpy(codec.decode, payload, spec).tobytes()


@compiled
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"bits": 3}, "2, 4 or 8 bits"),
        ({"groups": (-4, -128, 128)}, "rows of groups"),
        ({"groups": (4, 128, 0)}, "rows of groups"),
        ({"groups": (5, 128, 128)}, "5 rows of 128"),
        ({"groups": (2**62, 128, 128)}, "rows of 128"),
        ({"groups": (4, 128, 127)}, "a payload of"),
        ({"elements": 1}, "rows of 128"),
        ({"body": -1}, "a payload of"),
        ({"askew": 2}, "multiple of their size"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    module = native.functions
    assert module is not None
    given = {"dtype": "float32", "bits": 8, "groups": (4, 128, 128), "elements": 0, "body": 0, "askew": 0} | change
    memory = np.zeros(8 * 512, np.uint8)
    start = given["askew"]
    elements = memory[start : start + 4 * (512 + given["elements"])]  # type: ignore[operator]
    body = np.zeros(2 * 4 * 4 + 512 + given["body"], np.uint8)  # type: ignore[operator]
    plan = given["dtype"], given["groups"], given["bits"]
    with pytest.raises(ValueError, match=message):
        module.affine_encode(elements, body, *plan, -1)
    with pytest.raises(ValueError, match=message):
        module.affine_decode(body, elements, *plan)
    assert not body.any()


@compiled
@pytest.mark.parametrize(
    ("name", "source", "target", "dtype"),
    [
        ("narrow_floats", np.zeros(20, np.uint32), np.zeros(19, np.uint16), "bfloat16"),
        ("narrow_floats", np.zeros(20, np.uint32), np.zeros(81, np.uint8), "float16"),
        ("narrow_floats", np.zeros(20, np.uint32), np.zeros(20, np.uint16), "float64"),
        ("widen_floats", np.zeros(40, np.uint16), np.zeros(79, np.uint8), "bfloat16"),
    ],
)
def test_floats_that_do_not_fit_are_refused(name: str, source: Array, target: Array, dtype: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        getattr(native.functions, name)(source, target, dtype)
