"""What runs on a simulated device of PyTorch, in processes of their own: a process has one accelerator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.simulated import compiler, library

HERE = Path(__file__).resolve().parent
FILES = sorted((HERE / "on_device").glob("test_*.py"))

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Build the device first: a compiler that is there and fails is a failure of each test."""
    library()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem.removeprefix("test_"))
def test_on_the_device(path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(path)]
    environment = os.environ | {"TENSORSTASH_TEST_DEVICE": "sim", "OMP_NUM_THREADS": "1"}
    inner = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert inner.returncode == 0, inner.stdout[-6000:] + inner.stderr[-3000:]
