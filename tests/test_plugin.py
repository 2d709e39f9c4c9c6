"""A package of a third party, installed and used as one."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package installed."""
    target = tmp_path_factory.mktemp("site")
    source = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source"), dirs_exist_ok=True)  # is built where it is
    builder = ["--no-build-isolation"] if find_spec("setuptools") else []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *builder, "--target", target, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(target), os.environ.get("PYTHONPATH", "")))}


def run(installed: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=installed, cwd=PLUGIN, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_suites_pass(installed: dict[str, str]) -> None:
    examples = ["--doctest-modules", "--pyargs", "tests", "tensorstash_pages"]
    out = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *examples)
    passed = re.search(r"(\d+) passed", out)
    assert passed is not None
    assert int(passed[1]) > 50, out


def test_configurations_find_it_by_name_and_it_trains(installed: dict[str, str]) -> None:
    program = """
import sys, tensorstash as ts, tensorstash.reference as ref
from tensorstash.registry import names
assert "xor" in names("codecs") and "tensorstash_pages" not in sys.modules
policy = ts.parse("xor:distance=2 | compress | pages")
assert ts.from_dict(ts.to_dict(policy)) == policy
assert not {"torch", "paddle"} & set(sys.modules)
print(policy)

x = ref.tensor([[0.5, 2.0], [1.0, -3.0]], requires_grad=True)
with ts.stash(policy, framework="reference", min_bytes=0) as session:
    y = (x.exp() * x.tanh()).sum()
session.drain()
y.backward()
hooked, x.grad = x.grad.tolist(), None
(x.exp() * x.tanh()).sum().backward()
assert hooked == x.grad.tolist()
stats = session.stats()
assert stats.stages["xor"].tensors == stats.stashed.tensors > 0
assert stats.live.tensors == 0
"""
    assert re.search(r"Xor\(distance=2\).*Pages\(\)", run(installed, "-c", program))
