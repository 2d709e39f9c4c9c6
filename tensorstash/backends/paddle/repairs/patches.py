"""Attributes of the framework that are replaced while somebody needs it, and put back afterwards."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref


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
    """Patches that are in force for as long as at least one :class:`Lease` of them lives. Thread-safe.

    Leases are counted by reference, and each step can be taken again: what an interrupt has left half done, whoever
    comes next does.
    """

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        # A lease may die inside a garbage collection that begins while the lock is held.
        self._lock = threading.RLock()
        self._leases: set[ref[Lease]] = set()
        self._in_force: dict[Patch, tuple[Any, Any]] = {}
        self._made: dict[Patch, tuple[Any, Any]] = {}

    def lease(self) -> "Lease":
        """Put the patches in force until the lease and all others are gone."""
        lease = Lease(self._release)
        with self._lock:
            self._leases.add(ref(lease, self._leases.discard))
            for patch in self._patches:
                self._apply(patch)
        return lease

    def _apply(self, patch: Patch) -> None:
        known = self._in_force.get(patch)
        if known is None:
            inherits = patch.name not in vars(patch.owner)
            replacement = self._replacement(patch, getattr(patch.owner, patch.name))
            known = self._in_force[patch] = None if inherits else vars(patch.owner)[patch.name], replacement
        original, replacement = known
        if vars(patch.owner).get(patch.name) is original:
            setattr(patch.owner, patch.name, replacement)

    def _replacement(self, patch: Patch, original: Any) -> Any:
        known = self._made.get(patch)
        if known is None or known[0] is not original:
            known = self._made[patch] = original, patch.replacement(original)
        return known[1]

    def _release(self, lease: "Lease") -> None:
        with self._lock:
            others = (other for known in list(self._leases) if (other := known()) is not lease)
            if any(other is not None for other in others):
                return
            for patch, (original, replacement) in list(self._in_force.items()):
                # A patch of somebody else on top calls ours, which is harmless, and stays.
                if vars(patch.owner).get(patch.name) is replacement:
                    if original is None:
                        delattr(patch.owner, patch.name)
                    else:
                        setattr(patch.owner, patch.name, original)
                self._in_force.pop(patch, None)


class Lease:
    """Keeps patches in force while it lives."""

    __slots__ = ("__weakref__", "_release")

    def __init__(self, release: "Callable[[Lease], None]") -> None:
        self._release = release

    def __del__(self) -> None:
        self._release(self)
