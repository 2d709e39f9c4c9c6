"""What is left when a process ends, however it ends."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys, tempfile
import numpy as np
import tensorstash as ts, tensorstash.reference as ref

stash = ts.stash(ts.DiskSpill(sys.argv[1]), framework="reference", min_bytes=0)
steps = int(sys.argv[2])
tempfile._O_TMPFILE_WORKS = sys.argv[3] == "unnamed"
for step in range(steps):
    x = ref.tensor(np.linspace(-1, 1, 20_000, dtype=np.float32), requires_grad=True)
    with stash:
        y = x * 1.0
        for _ in range(20):
            y = y.tanh()
        loss = y.sum()
    if step == 0:
        print("training", flush=True)
    if step + 1 < steps:
        loss.backward()
"""


def start(directory: Path, level: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", TRAIN, str(directory), str(steps), level]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("level", ["unnamed", "unlinked"])
def test_processes_that_are_killed_or_exit_with_work_under_way_leave_no_file_and_no_directory(tmp_path, level):
    """Files never have a name, or lose it at once where the file system has no others. The last process cleans up."""
    rounds = int(os.environ.get("TENSORSTASH_KILLS", "2")) * hasattr(signal, "SIGKILL")
    moments = random.Random(0)
    for _ in range(rounds):
        process = start(tmp_path, level, steps=10**9)
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0, 0.3))
        process.kill()
        process.communicate()
        left = [path for path in tmp_path.rglob("*") if not path.is_dir()]
        assert left == []
    process = start(tmp_path, level, steps=2)
    out, err = process.communicate(timeout=400)
    assert (process.returncode, out, err) == (0, "training\n", "")
    assert os.listdir(tmp_path) == []
