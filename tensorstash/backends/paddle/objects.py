"""Live objects of a class, found by what Python's garbage collector knows."""

import gc
from collections.abc import Sequence
from typing import Any


def instances(kinds: Sequence[type]) -> list[Any]:
    """Return all live instances of some classes, those that ``gc.freeze()`` has set aside included.

    Instances refer to their class. The search holds the interpreter lock and gives out nothing else, unlike
    ``gc.get_objects()``, whose list breaks tuples that other threads are just building.

    Frozen objects are in none of the collector's searches; so they are let go of for the length of it. What was young
    and not frozen then is frozen afterwards, as if ``gc.freeze()`` had been called only now.
    """
    frozen = gc.get_freeze_count()
    if not frozen:
        return _referring(kinds)
    was_enabled = gc.isenabled()
    gc.disable()
    gc.unfreeze()
    try:
        return _referring(kinds)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _referring(kinds: Sequence[type]) -> list[Any]:
    return [found for kind in kinds for found in gc.get_referrers(kind) if isinstance(found, kind)]
