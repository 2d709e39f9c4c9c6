"""What was saved since the last time something was asked for: contents that are live, and their order."""

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

    __slots__ = (
        "_asked",
        "_contents",
        "_count",
        "_cursors",
        "_expected",
        "_groups",
        "_order",
        "_payloads",
        "_places",
        "_room",
        "signature",
    )

    def __init__(self) -> None:
        self.signature = 0
        self._contents: dict[Hashable, ref[Payload]] = {}
        self._groups: dict[Hashable, InterleavedGroup] = {}
        self._payloads: dict[int, ref[Payload]] = {}
        self._count = 0
        self._room = _FEW
        self._expected = 0
        self._order: list[int] = []
        self._places: dict[int, int] = {}
        self._asked: dict[int, None] = {}
        self._cursors = [0, 0]

    def find(self, content: Hashable) -> Payload | None:
        """Return the live payload of a content, if there is one."""
        known = self._contents.get(content)
        return known() if known is not None else None

    def add(self, content: Hashable, payload: Payload) -> None:
        """Append a payload and give it its index."""
        if len(self._payloads) >= self._room:
            self._forget()
        payload.index = self._count
        self._count += 1
        self._payloads[payload.index] = self._contents[content] = ref(payload)
        self.signature = hash((self.signature, payload.route.kind))

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
        return filter(None, (known() for known in list(self._payloads.values())))

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Take nothing for the same as what was saved here any more."""
        self._contents.clear()
        self._groups.clear()

    @property
    def asked(self) -> tuple[int, ...]:
        """Indices in the order in which they were first asked for."""
        return tuple(self._asked)

    def _expect(self, known_order: tuple[int, ...]) -> None:
        rest = {index for index, known in self._payloads.items() if known() is not None}.difference(known_order)
        self._order = [*known_order, *sorted(rest, reverse=True)]
        self._places = {index: place for place, index in enumerate(self._order)}
        self._expected = self._count  # last: an interrupt may leave it undone

    @property
    def needs_order(self) -> bool:
        """Whether the next request is the first since something was saved."""
        return self._expected != self._count

    def ask(self, index: int, order: tuple[int, ...]) -> None:
        """Note a request, and expect the others in this order, and those that it lacks behind, the last saved first.

        Args:
            index: of the payload.
            order: indices; it counts with the first request since something was saved.
        """
        if self._expected != self._count:
            self._expect(order)
        if index in self._asked:
            self._asked.clear()
            self._cursors = [0, 0]
        self._asked[index] = None
        place = self._places[index] + 1
        there, back = self._cursors
        self._cursors = [max(there, place), max(back, place)]

    def expected_next(self, reader: int) -> Iterator[Payload]:
        """Give the live payloads that are expected next, nearest first.

        Each reader, 0 or 1, is remembered how far it came; what it was given is not given again, unless the whole order
        is run through a second time.
        """
        while self._cursors[reader] < len(self._order):
            known = self._payloads.get(self._order[self._cursors[reader]])
            payload = None if known is None else known()
            if payload is not None:
                yield payload
            self._cursors[reader] += 1

    def _forget(self) -> None:
        """Forget what is gone."""
        self._payloads = {index: known for index, known in self._payloads.items() if known() is not None}
        self._contents = {content: known for content, known in self._contents.items() if known() is not None}
        self._groups = {key: group for key, group in self._groups.items() if group.is_live}
        self._room = 2 * len(self._payloads) + _FEW
