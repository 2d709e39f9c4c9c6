"""Attributes of the framework that are replaced while somebody needs it, and put back afterwards."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute of one module or class, and how its replacement is made from the original.

    Args:
        owner: the module or class.
        name: the attribute; it may be inherited.
        replacement: gets the original.
    """

    owner: Any
    name: str
    replacement: Callable[[Any], Any]


class Patches:
    """Patches that are in force for as long as at least one :class:`Lease` of them lives. Thread-safe."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        # A lease may die inside a garbage collection that begins while the lock is held.
        self._lock = threading.RLock()
        self._leases = 0
        self._undo: list[tuple[Patch, Any, Any]] = []
        self._made: dict[Patch, tuple[Any, Any]] = {}

    def lease(self) -> "Lease":
        """Put the patches in force until the lease and all others are gone."""
        with self._lock:
            self._leases += 1
            if self._leases == 1:
                for patch in self._patches:
                    inherits = patch.name not in vars(patch.owner)
                    replacement = self._replacement(patch, getattr(patch.owner, patch.name))
                    original = None if inherits else vars(patch.owner)[patch.name]
                    setattr(patch.owner, patch.name, replacement)
                    self._undo.append((patch, original, replacement))
        return Lease(self._release)

    def _replacement(self, patch: Patch, original: Any) -> Any:
        known = self._made.get(patch)
        if known is None or known[0] is not original:
            known = self._made[patch] = original, patch.replacement(original)
        return known[1]

    def _release(self) -> None:
        with self._lock:
            self._leases -= 1
            if self._leases:
                return
            undo, self._undo = self._undo, []
            for patch, original, replacement in undo:
                # What somebody else has put on top meanwhile calls ours, which is harmless, and stays.
                if vars(patch.owner).get(patch.name) is not replacement:
                    continue
                if original is None:
                    delattr(patch.owner, patch.name)
                else:
                    setattr(patch.owner, patch.name, original)


class Lease:
    """Keeps patches in force while it lives."""

    __slots__ = ("_release",)

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def __del__(self) -> None:
        self._release()
