"""The peak of a process falls by most of what is stashed: in each cell of the matrix, and with compiled blocks.

``TENSORSTASH_MATRIX=all`` measures every cell; else one compiler. Each training has a process of its own, forked from
one that has imported what it needs.
"""

import json
import os
from collections.abc import Callable
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

Measure = Callable[[Cell], dict[str, Any]]


@pytest.fixture(scope="module")
def measured() -> Measure:
    """Return how much memory a cell takes, and what it stashes; what has no policy is measured once."""

    @cache
    def measure(cell: Cell) -> dict[str, Any]:
        given = {name: value for name, value in asdict(cell).items() if name != "policy"}
        found: dict[str, Any] = json.loads(output_of(WORKER, json.dumps(given)).splitlines()[-1])
        return found

    return measure


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_peak_falls_by_most_of_what_a_step_stashes(
    cell: Cell, record_property: Callable[[str, object], None], measured: Measure
) -> None:
    plain, under = measured(without_policy(cell)), measured(cell)
    fell, stashed = plain["peak"] - under["peak"], under["stashed"]
    what = f"{cell}: a batch stashes {stashed / 2**20:.1f} MiB, and the peak falls by {fell / 2**20:.1f} MiB"
    record_property("cell", f"{what}: {fell / max(stashed, 1):.2f}")
    assert stashed > 2**22
    assert fell >= SHARE * stashed, what
    assert "at once" not in under["advice"]
