"""Run the core of the kit on other versions of a framework: ``python -m tests.framework_versions paddle 3.3.1``.

Installs each version into a folder of its own, in front of what this environment has, and runs the suite of the
backend there. Versions that the package declares as too old have to be refused with the versions that work; say
``--refused`` for those. Without versions: the oldest and the newest that are declared.

For PyTorch, ``--index-url https://download.pytorch.org/whl/cpu`` has builds without CUDA.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from tensorstash.backends.features import FRAMEWORKS
from tests.documents import ROOT

SUITES = {"torch": "tests/conformance/test_torch.py", "paddle": "tests/conformance/test_paddle.py"}

REFUSED = """
import {name}, tensorstash as ts
try:
    ts.stash("compress", framework="{name}")
except ts.TensorStashError as error:
    print(error)
"""


def main() -> int:
    """Run what the command line asks for, and return how many versions are not as declared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("versions", nargs="*", help="by default the oldest and the newest that are declared")
    parser.add_argument("--refused", action="store_true", help="they have to be refused")
    parser.add_argument("--only", default="", metavar="WORDS", help="tests of the suite, as pytest's -k takes them")
    parser.add_argument("--index-url", help="for pip")
    options = parser.parse_args()
    framework = FRAMEWORKS[options.framework]
    failures = 0
    for version in options.versions or dict.fromkeys((framework.oldest, framework.newest)):
        with tempfile.TemporaryDirectory() as folder:
            install(f"{framework.package}=={version}", folder, options.index_url)
            passed = refuses(options.framework, folder) if options.refused else runs(options, folder)
        failures += not passed
        print(f"{'ok  ' if passed else 'FAIL'} {framework.package} {version}", flush=True)
    return failures


def install(package: str, folder: str, index_url: str | None) -> None:
    """Install a package and what this environment lacks of its dependencies."""
    index = ["--index-url", index_url] if index_url else []
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", folder, *index]
    subprocess.run([*pip, "--no-deps", package], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", folder, "decorator", "astor"], check=True)


def environment(folder: str) -> dict[str, str]:
    """Return the variables under which ``folder`` comes first."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT))), "OMP_NUM_THREADS": "1"}


def runs(options: argparse.Namespace, folder: str) -> bool:
    """Whether the suite passes."""
    test = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", SUITES[options.framework]]
    test += ["-k", options.only] if options.only else []
    return subprocess.run(test, cwd=ROOT, env=environment(folder), check=False).returncode == 0


def refuses(name: str, folder: str) -> bool:
    """Whether the version is refused, with those that work."""
    command = [sys.executable, "-W", "ignore", "-c", REFUSED.format(name=name)]
    done = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, check=False)
    print(done.stdout or done.stderr[-500:], end="")
    return FRAMEWORKS[name].cure in done.stdout


if __name__ == "__main__":
    sys.exit(main())
