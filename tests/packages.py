"""Build the package as it is published, and install what was built as a user would: ``python -m tests.packages``.

Needs the dependency group ``release`` and the package index. Builds sdist and wheel from what git tracks, has twine and
auditwheel look at them, installs the wheel in a clean environment and the sdist in one where no compiler works, and
runs tests out of the unpacked sdist. Prints a line for each check; the exit status is 1 if one fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

USE = """
import warnings
import numpy as np
import tensorstash as ts, tensorstash.reference as ref
from tensorstash.host import native
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    stash = ts.stash("compress", framework="reference", min_bytes=0)
    for _ in range(5):
        with stash:
            loss = ref.tensor(np.ones((512, 1024), np.float32), requires_grad=True).exp().exp().sum()
        loss.backward()
print("tensors", stash.stats().stashed.tensors)
print("compiled", native.functions is not None)
print("said", any("compiled part of tensorstash is missing" in str(each.message) for each in said))
"""
"""What is done with an installed package, on the engine that needs no framework."""

FROM_SDIST = ("tests/test_spec.py", "tests/config/test_sizes.py", "tests/test_house.py")
"""Tests that run out of the sdist; they need what it has to contain, and no framework."""


def main() -> int:
    """Make every check and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where sdist and wheel are left")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        failures = [name for name, passed in checks(place).items() if not passed]
        if options.keep:
            shutil.copytree(place / "dist", options.keep, dirs_exist_ok=True)
    print("failed: " + ", ".join(failures) if failures else "all is well")
    return 1 if failures else 0


def checks(place: Path) -> dict[str, bool]:
    """Return whether each check has passed, by what it says.

    Args:
        place: an empty folder.
    """
    source = tracked(place / "source")
    run([sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(source)])
    (sdist,), (wheel,) = (list((place / "dist").glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
    built = [str(sdist), str(wheel)]
    clean = install(place / "clean", wheel)
    bare = install(place / "bare", sdist, CC="/bin/false", CXX="/bin/false")
    results: dict[str, bool] = {}

    def check(name: str, passed: bool) -> None:
        results[name] = passed
        print(f"{'ok  ' if passed else 'FAIL'} {name}", flush=True)

    check("twine accepts both", "FAILED" not in run([sys.executable, "-m", "twine", "check", *built]))
    if sys.platform == "linux":
        shown = run([sys.executable, "-m", "auditwheel", "show", str(wheel)])
        check("auditwheel sees manylinux", '"manylinux_' in shown)
    check("the wheel is compiled and works", use(clean) == {"tensors": "10", "compiled": "True", "said": "False"})
    check("the wheel has its command", "tensorstash" in run([str(clean.parent / "tensorstash"), "--version"]))
    check(
        "the sdist works without a compiler, and says so",
        use(bare) == {**use(clean), "compiled": "False", "said": "True"},
    )
    doctor = run([str(bare), "-m", "tensorstash", "doctor", "--size", "16MiB"], cwd=place, check=False)
    check("its doctor names the missing extension", "compiled extension: missing" in doctor)
    unpacked = unpack(sdist, place / "unpacked")
    lacks = [name for name in names(source) if not (unpacked / name).exists() and not name.startswith(".github")]
    check(f"the sdist has all that git tracks {lacks or ''}".rstrip(), not lacks)
    test = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "0", *FROM_SDIST]
    check("tests run out of the sdist", " passed" in run(test, cwd=unpacked, PYTHONPATH=str(unpacked)))
    return results


def tracked(place: Path) -> Path:
    """Copy what git tracks, as it is now, and return where it is."""
    for name in names(ROOT):
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return place


def names(place: Path) -> list[str]:
    """Return the files that git tracks, or all in a copy of them."""
    if place == ROOT:
        return [name for name in run(["git", "ls-files"], cwd=ROOT).splitlines() if (ROOT / name).exists()]
    built = ("build", "tensorstash.egg-info")
    files = (path.relative_to(place) for path in place.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if path.parts[0] not in built)


def install(place: Path, *packages: Path | str, **variables: str) -> Path:
    """Return the Python of a new environment in which each package was installed, with what it depends on, in turn."""
    venv.create(place, with_pip=True)
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    for package in packages:
        run([str(python), "-m", "pip", "install", "-q", "--no-cache-dir", str(package)], **variables)
    return python


def use(python: Path) -> dict[str, str]:
    """Return what the program prints, by its first words."""
    printed = run([str(python), "-c", USE], cwd=python.parent)
    return dict(line.split(" ") for line in printed.splitlines())


def unpack(sdist: Path, place: Path) -> Path:
    """Return the folder that an sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (inside,) = place.iterdir()
    return inside


def run(command: list[str], *, cwd: Path | None = None, check: bool = True, **variables: str) -> str:
    """Return what a command prints; one that fails is an error that shows it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
