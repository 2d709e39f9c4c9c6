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


levels = pytest.mark.parametrize("level", ["unnamed", "unlinked"])
"""Files that never have a name, and files that lose it at once where the file system has no others."""


def start(directory: Path, level: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", TRAIN, str(directory), str(steps), level]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@levels
def test_a_process_that_exits_with_work_under_way_ends_quietly_and_leaves_nothing(tmp_path, level):
    process = start(tmp_path, level, steps=2)
    out, err = process.communicate(timeout=400)
    assert (process.returncode, out, err) == (0, "training\n", "")
    assert os.listdir(tmp_path) == []


@levels
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_killed_processes_leave_no_file_and_no_directory_that_the_next_start_does_not_remove(tmp_path, level):
    rounds = int(os.environ.get("TENSORSTASH_KILLS", "2"))
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
    process.communicate(timeout=400)
    assert os.listdir(tmp_path) == []
