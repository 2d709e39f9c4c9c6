"""What is made again is really gone: resident memory of a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("recompute_memory.py")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is resident")
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_resident_memory_falls_by_what_is_made_again(framework):
    command = [sys.executable, "-W", "ignore", str(WORKER), framework]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    kept, recomputed, logical = map(int, done.stdout.split()[-3:])
    assert logical > 20 * 2**20
    assert kept - recomputed > 0.7 * logical
