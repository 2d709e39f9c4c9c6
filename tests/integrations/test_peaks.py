"""The peak of a process falls by most of what is stashed: in each cell of the matrix, and with compiled blocks.

``TENSORSTASH_MATRIX=all`` measures every cell; else one compiler. Each training has a process of its own.
"""

import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cells import Cell, every_cell, without_policy

from tests.processes import output_of

WORKER = Path(__file__).with_name("memory_worker.py")


def compiled(backend: str) -> Cell:
    return Cell(f"blocks:{backend}", "fp32", "callback", False, False, 1)


ALL = os.environ.get("TENSORSTASH_MATRIX") == "all"
CELLS = [compiled("aot_eager"), compiled("inductor"), *every_cell()] if ALL else [compiled("aot_eager")]

SHARE = 0.6
"""Of what a step stashes; the rest is on its way, or was never at the peak."""


@cache
def measured(cell: Cell) -> dict[str, Any]:
    """Return how much memory a cell takes, and what it stashes; what has no policy is measured once."""
    given = {name: value for name, value in asdict(cell).items() if name != "policy"}
    found: dict[str, Any] = json.loads(output_of(WORKER, json.dumps(given)).splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_peak_falls_by_most_of_what_a_step_stashes(cell: Cell) -> None:
    plain, under = measured(without_policy(cell)), measured(cell)
    fell, stashed = plain["peak"] - under["peak"], under["stashed"]
    assert stashed > 2**22
    assert fell >= SHARE * stashed, f"a batch stashes {stashed / 2**20:.1f} MiB, the peak falls {fell / 2**20:.1f} MiB"
    assert "at once" not in under["advice"]
