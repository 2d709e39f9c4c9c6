"""Which cases of a product run: those in which each two values meet; all of them with ``TENSORSTASH_LONG=1``."""

import os
from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import Any

IS_LONG = bool(os.environ.get("TENSORSTASH_LONG"))


def pairwise(*dimensions: Iterable[Any], exists: Callable[..., bool] = lambda *case: True) -> list[tuple[Any, ...]]:
    """Return cases in which each value of a dimension meets each value of every other one, where both exist together.

    >>> len(pairwise("ab", "cd", "ef")) in (4, 8)
    True
    """
    cases = [case for case in product(*map(tuple, dimensions)) if exists(*case)]
    if IS_LONG:
        return cases
    pairs = [set(combinations(enumerate(case), 2)) for case in cases]
    missing, chosen = set[Any]().union(*pairs), []
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        chosen.append(cases[best])
        missing -= pairs[best]
    return chosen
