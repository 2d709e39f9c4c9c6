"""Pairs of hooks for tests that have no engine in between: one that counts, and one that copies through the adapter."""

import weakref
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from tensorstash.host.arrays import borrowed


class Log:
    """A pair that counts its calls."""

    def __init__(self) -> None:
        self.packs = 0
        self.unpacks = 0

    def pack(self, tensor: Any) -> Any:
        self.packs += 1
        return tensor.detach()

    def unpack(self, packed: Any) -> Any:
        self.unpacks += 1
        return packed


class Packed:
    """What :class:`CopyingPair` packs; a weak reference tells whether it is still there."""

    def __init__(self, data: Any, spec: Any) -> None:
        self.data = data
        self.spec = spec


class CopyingPair:
    """Copies all that can be stashed through host arrays, keeps the rest; counts both."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.copied: Counter[tuple[int, ...]] = Counter()
        self.kept: Counter[str] = Counter()
        self.unpacked = 0
        self._alive: list[weakref.ref[Packed]] = []

    @property
    def live(self) -> int:
        """How many copies are alive."""
        return sum(packed() is not None for packed in self._alive)

    def hooks(self) -> AbstractContextManager[None]:
        return self.backend.hooks(self.pack, self.unpack)

    def pack(self, tensor: Any) -> Any:
        reason = self.backend.keep_reason(tensor)
        if reason is not None:
            self.kept[reason] += 1
            return self.backend.alias(tensor)
        self.copied[tuple(tensor.shape)] += 1
        spec = self.backend.spec(tensor)
        packed = Packed(self.backend.to_host(tensor, spec).copy(), spec)
        self._alive.append(weakref.ref(packed))
        return packed

    def unpack(self, packed: Any) -> Any:
        self.unpacked += 1
        if not isinstance(packed, Packed):
            return packed
        return self.backend.from_host(borrowed(packed.data), packed.spec)
