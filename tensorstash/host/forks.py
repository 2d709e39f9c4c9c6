"""Objects that learn of a fork: the child inherits every lock as it was, but no thread that would release it."""

import os
from typing import Any
from weakref import WeakSet

_LIVE: WeakSet[Any] = WeakSet()


def renew_after_fork(thing: Any) -> None:
    """Call ``thing.after_fork()`` in every child that is forked while it lives."""
    _LIVE.add(thing)


def _renew() -> None:
    for thing in list(_LIVE):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
