"""What must hold over many steps and many schedules: nothing grows, no budget is exceeded, nothing waits for ever."""

import json
import subprocess
import sys
import threading
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from gates import Gated
from planted_faults import Faulty
from schedules import Auditor, TellingBudget, gradient, run, schedule
from test_fault_matrix import lab_of

import tensorstash as ts
from tensorstash.buffers import Array
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing.layouts import floats

SCRIPT = Path(__file__).resolve().parents[1] / "bench" / "endurance.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("policy", ["disk_spill", "compress | disk_spill"])
@pytest.mark.parametrize("framework", ["reference", "torch", "paddle"])
def test_what_a_process_holds_is_flat_after_ten_steps(framework, policy, tmp_path):
    command = [sys.executable, str(SCRIPT), "--framework", framework, "--policy", policy, "--steps", "40"]
    command += ["--rows", "1024", "--tolerance-mib", "8", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def right(framework: str, rows: int, nested: bool) -> Array:
    return gradient(lab_of(framework), rows, nested, None)


@pytest.mark.parametrize("seed", range(200))
def test_no_budget_is_exceeded_by_one_byte_and_no_schedule_hangs(seed, tmp_path):
    plan = schedule(seed, str(tmp_path))
    done = run(plan, lab_of(plan.framework), partial(right, plan.framework))
    assert done.wrong == [], plan
    assert done.trained + done.refused == sum(map(len, plan.steps))
