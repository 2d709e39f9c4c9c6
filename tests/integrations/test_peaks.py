"""The peak of a process falls by most of what is stashed, with blocks that the compiler has compiled, too."""

import json
import os
from pathlib import Path

import pytest

from tests.processes import output_of

WORKER = Path(__file__).with_name("memory_worker.py")
BACKENDS = ["aot_eager", "inductor"] if os.environ.get("TENSORSTASH_MATRIX") == "all" else ["aot_eager"]
SHARE = 0.6  # of what a step stashes; the rest is on its way, or was never at the peak


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_peak_falls_by_most_of_what_a_step_stashes(backend: str, tmp_path: Path) -> None:
    output_of(WORKER, backend, tmp_path, "keep", "disk_spill")
    plain, under = (json.loads((tmp_path / number).read_text()) for number in "01")
    fell, stashed = plain["peak"] - under["peak"], under["stashed"]
    assert stashed > 2**22
    assert fell >= SHARE * stashed, f"a batch stashes {stashed / 2**20:.1f} MiB, the peak falls {fell / 2**20:.1f} MiB"
    assert "at once" not in under["advice"]
