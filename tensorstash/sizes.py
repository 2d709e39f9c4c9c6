"""Byte counts as people write them."""

import re
from typing import Literal

from tensorstash.errors import ConfigError, say

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}
_PLAUSIBLE = 4096  # bytes below which a budget without a unit is taken for a slip: less than one page of memory

BudgetSize = int | Literal["auto"]
"""Bytes, or the memory that is free when the first tensor is saved."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | str, *, path: str) -> int:
    """Return a number of bytes from an int or from text such as ``"40GiB"``; ``path`` names it in the message.

    Units are B, kB, MB, GB, TB; KiB, MiB, GiB, TiB, also written K, M, G, T; case does not matter.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    if isinstance(size, str) and (match := _SIZE.fullmatch(size)) and match[2].lower() in _UNITS:
        return int(float(match[1]) * _UNITS[match[2].lower()])
    raise ConfigError(f"{path}: got {size!r}, expected a number of bytes, 0 or more, such as 4096 or '40GiB'")


def parse_budget(size: int | str, *, path: str) -> int:
    """Return :func:`parse_bytes` of a budget, and warn where a number without a unit is too small to be meant."""
    nbytes = parse_bytes(size, path=path)
    if 0 < nbytes < _PLAUSIBLE and str(size).strip().isdecimal():
        meant = f"write '{nbytes}GiB', or '{nbytes}B'"
        say(f"{path}: {size} without a unit is {nbytes} bytes, less than a page of memory; {meant}")
    return nbytes


def budget_of(budget: object, path: str) -> BudgetSize | None:
    """Return the budget that a user has passed: bytes, text with a unit, ``"auto"`` or None.

    >>> budget_of("6 GiB", "stash.budget")
    6442450944
    >>> budget_of("6", "stash.budget")
    Traceback (most recent call last):
    tensorstash.errors.ConfigError: stash.budget: got '6', expected a size with a unit, such as '6GiB', or 'auto'
    """
    if budget is None:
        return None
    if budget == "auto":
        return "auto"
    is_bare = isinstance(budget, str) and budget.strip().isdecimal()
    if isinstance(budget, bool) or not isinstance(budget, int | str) or is_bare:
        raise ConfigError(f"{path}: got {budget!r}, expected a size with a unit, such as '6GiB', or 'auto'")
    return parse_budget(budget, path=path)


def format_bytes(nbytes: int) -> str:
    """Return a byte count with a binary unit and three significant digits.

    >>> format_bytes(0), format_bytes(1536), format_bytes(40 * 2**30)
    ('0 B', '1.5 KiB', '40 GiB')
    """
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
