"""The peak of a process falls by most of what is stashed, in each trainer and with compiled blocks.

``TENSORSTASH_MATRIX=all`` measures every trainer and compiler; else one compiler.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WORKER = Path(__file__).with_name("memory_worker.py")
RUNS = ["blocks:aot_eager"]
if os.environ.get("TENSORSTASH_MATRIX") == "all":
    RUNS += ["blocks:inductor", "accelerate", "transformers", "trl", "lightning"]

SHARE = 0.6
"""Of what a step stashes; the rest is on its way, or was never at the peak."""


def measured(name: str, where: str) -> dict[str, Any]:
    paths = os.pathsep.join([str(ROOT), str(WORKER.parent)])
    # Freed blocks of more than this go back to the system at once, so that what is resident is what is in use.
    variables = {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, WORKER, name, where], capture_output=True, text=True, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("name", RUNS)
def test_the_peak_falls_by_most_of_what_a_step_stashes(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    plain, under = measured(name, "plain"), measured(name, "callback")
    fell = plain["peak"] - under["peak"]
    what = f"{name}: a step stashes {under['stashed'] >> 20} MiB, and the peak falls by {fell >> 20} MiB"
    record_property("cell", what)
    assert under["stashed"] > 2**26
    assert fell >= SHARE * under["stashed"], what
    assert "at once" not in under["advice"]
