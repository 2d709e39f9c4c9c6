"""The cases that are left out of the comparison, since plain Paddle crashes in them or is not deterministic."""

from functools import cache
from itertools import product
from pathlib import Path

from .cases import Case
from .table import ROWS

FILE = Path(__file__).with_name("exclusions.txt")


@cache
def exclusions() -> frozenset[Case]:
    """Return the cases in the file: each line has layouts, types, and rows that all of these are left out of."""
    found = set()
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        layouts, dtypes, rows = line.split(" | ")
        for row, layout, dtype in product(rows.split(" ; "), layouts.split(","), dtypes.split(",")):
            assert row in ROWS, f"no such row: {row!r}"
            found.add(Case(row, layout, dtype))
    return frozenset(found)
