"""Objects that learn of a fork: the child inherits every lock as it was, but no thread that would release it."""

import os
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """Something that begins anew in a forked child, or refuses to work there."""

    def after_fork(self) -> None: ...


_LIVE: WeakSet[Renewed] = WeakSet()


def renew_after_fork(thing: Renewed) -> None:
    """Call ``thing.after_fork()`` in every child that is forked while it lives."""
    _LIVE.add(thing)


def _renew() -> None:
    for thing in list(_LIVE):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
