"""The whole table."""

from . import algebra, elementwise, layers, reductions, shapes
from .rows import Row

ROWS: dict[str, Row] = {}
"""Every row by its id; of two alike the second has a number."""

for _module in (elementwise, reductions, shapes, algebra, layers):
    for _row in _module.ROWS:
        _same = sum(known == _row.id or known.rpartition("#")[0] == _row.id for known in ROWS)
        ROWS[f"{_row.id}#{_same + 1}" if _same else _row.id] = _row
