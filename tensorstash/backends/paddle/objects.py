"""Live objects of a class, found by what Python's garbage collector knows."""

import gc
from collections.abc import Callable, Sequence
from typing import Any


class _Searched:
    """What :data:`_EARLY` refers to, so that a search for its referrers tells whether that is frozen."""


_EARLY = [_Searched]


def instances(kinds: Sequence[type], are_all: Callable[[list[Any]], bool] | None = None) -> list[Any]:
    """Return all live instances of some classes, those that ``gc.freeze()`` has set aside included.

    Instances refer to their class. The search holds the interpreter lock and gives out nothing else, unlike
    ``gc.get_objects()``, whose list breaks tuples that other threads are just building.

    Frozen objects are in none of the collector's searches; so they are let go of for the length of it. What was young
    and not frozen then is frozen afterwards, as if ``gc.freeze()`` had been called only now.

    Args:
        kinds: the classes; instances of classes below them are found where these are among them.
        are_all: whether what is not frozen is all that is wanted; then that is returned, and what is frozen stays so.
    """
    found = gc.get_referrers(_Searched, *kinds)
    wanted = _only(kinds, found)
    if are_all is not None and are_all(wanted):
        return wanted
    # To ask how many objects are frozen counts them, which takes as long as a search among them.
    if any(each is _EARLY for each in found) and not gc.get_freeze_count():
        return wanted
    was_enabled = gc.isenabled()
    gc.disable()
    gc.unfreeze()
    try:
        return _only(kinds, gc.get_referrers(*kinds))
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _only(kinds: Sequence[type], found: list[Any]) -> list[Any]:
    return [each for each in found if isinstance(each, tuple(kinds))]
