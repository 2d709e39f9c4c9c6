"""What was saved since the last time something was asked for: contents that are live, numbered in their order."""

from collections.abc import Hashable, Iterator
from typing import Any
from weakref import ref

from tensorstash.abilities import SupportsSharedMemory
from tensorstash.engine.payloads.interleaved import InterleavedGroup, InterleavedPlace, InterleavedView
from tensorstash.engine.payloads.payload import Payload
from tensorstash.spec import TensorSpec

_FEW = 64
"""Payloads that are not worth forgetting."""


class DedupIndex:
    """The payloads of one stretch of packing, known only weakly.

    A stretch ends with the first unpack. Optimizers, ``.data`` and aliases through other libraries write without
    bumping a version, and they do so between backward and the next forward; so a content that was saved before the
    last unpack is never taken for the same again. A stretch without one may be endless, so that what is gone is
    forgotten: what it knows is at most twice as much as is live, and a few.

    Not thread-safe; its owner locks.
    """

    __slots__ = ("_contents", "_groups", "_room", "count", "known", "signature")

    def __init__(self) -> None:
        self.signature = 0
        """The same for stretches in which the same kinds of payloads were saved, in the same order."""
        self.count = 0
        """Payloads that were saved so far."""
        self.known: dict[int, ref[Payload]] = {}
        """Those that are live, and perhaps some that have gone, by index."""
        self._contents: dict[Hashable, ref[Payload]] = {}
        self._groups: dict[Hashable, InterleavedGroup] = {}
        self._room = _FEW

    def find(self, content: Hashable) -> Payload | None:
        """Return the live payload of a content, if there is one."""
        known = self._contents.get(content)
        return known() if known is not None else None

    def add(self, content: Hashable, payload: Payload) -> None:
        """Append a payload and give it its index."""
        if len(self.known) >= self._room:
            self._forget()
        payload.index = self.count
        self.known[payload.index] = self._contents[content] = ref(payload)
        self.signature = hash((self.signature, payload.route.kind))
        self.count += 1  # last: whoever has seen it finds all of them

    def interleaved_place(
        self, memory: Hashable, spec: TensorSpec, start: int, backend: SupportsSharedMemory[Any]
    ) -> InterleavedPlace | None:
        """Return the place of a tensor among those of the same memory that it lies interleaved with, if it does.

        Args:
            memory: names the storage, its version and the type of its elements.
            spec: of the tensor.
            start: where it begins in the storage, in bytes.
            backend: what puts them back together.
        """
        view = InterleavedView.of(spec, start)
        if view is None:
            return None
        key = memory, view.block[0]
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = InterleavedGroup(backend)
        return group.add(view)

    def payloads(self) -> Iterator[Payload]:
        """Give the payloads that are live."""
        return filter(None, (known() for known in list(self.known.values())))

    def close(self) -> None:
        """Take nothing for the same as what was saved here any more."""
        self._contents.clear()
        self._groups.clear()

    def _forget(self) -> None:
        """Forget what is gone."""
        self.known = {index: known for index, known in self.known.items() if known() is not None}
        self._contents = {content: known for content, known in self._contents.items() if known() is not None}
        self._groups = {key: group for key, group in self._groups.items() if group.is_live}
        self._room = 2 * len(self.known) + _FEW
