"""What is left out of the comparison, and why: cases about which plain Paddle says nothing that could be compared."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from .cases import Case
from .table import ROWS

FILE = Path(__file__).with_name("exclusions.txt")

REFUSED = "Paddle refuses it"
CRASHES = "plain Paddle crashes"
NO_GRADIENT = "not differentiable"
UNSTABLE = "plain Paddle is not deterministic"
REASONS = (REFUSED, CRASHES, NO_GRADIENT, UNSTABLE)


@cache
def exclusions() -> dict[Case, str]:
    """The reason of each case that is left out, as the file says.

    A line of the file is a reason, layouts, types, and rows that all of these are left out of.
    """
    found = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        reason, layouts, dtypes, rows = line.split(" | ")
        assert reason in REASONS, f"unknown reason: {reason!r}"
        for row in rows.split(" ; "):
            assert row in ROWS, f"no such row: {row!r}"
            for layout in layouts.split(","):
                for dtype in dtypes.split(","):
                    found[Case(row, layout, dtype)] = reason
    return found


def reason_of(outcome: Mapping[str, object]) -> str | None:
    """Why a case must be left out, by what the job ``plain`` says of it; None if it need not."""
    if "died" in outcome:
        return CRASHES
    return str(outcome["excluded"]) if "excluded" in outcome else None
