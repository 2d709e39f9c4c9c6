"""What was saved since the last time something was asked for: contents that are live, numbered in their order."""

from collections.abc import Hashable, Iterator
from typing import Any
from weakref import WeakValueDictionary, ref

from tensorstash.abilities import SupportsSharedMemory
from tensorstash.engine.content import Content
from tensorstash.engine.shared_span import SharedSpan, span_of
from tensorstash.spec import TensorSpec

_FEW = 64
"""Contents that are not worth forgetting."""


class DedupIndex:
    """The contents of one stretch of packing, known only weakly.

    A stretch ends with the first unpack. Optimizers, ``.data`` and aliases through other libraries write without
    bumping a version, and they do so between backward and the next forward; so a content that was saved before the
    last unpack is never taken for the same again. A stretch without one may be endless, so that what is gone is
    forgotten: what it knows is at most twice as much as is live, and a few.

    Not thread-safe; its owner locks.
    """

    __slots__ = ("_contents", "_room", "_spans", "count", "known", "signature")

    def __init__(self) -> None:
        self.signature = 0
        """The same for stretches in which the same kinds of contents were saved, in the same order."""
        self.count = 0
        """Contents that were saved so far."""
        self.known: dict[int, ref[Content]] = {}
        """Those that are live, and perhaps some that have gone, by index."""
        self._contents: dict[Hashable, ref[Content]] = {}
        self._spans: WeakValueDictionary[Hashable, SharedSpan] = WeakValueDictionary()
        self._room = _FEW

    def find(self, key: Hashable) -> Content | None:
        """Return the live content of a key, if there is one."""
        known = self._contents.get(key)
        return known() if known is not None else None

    def add(self, key: Hashable, content: Content) -> None:
        """Append a content, whose index is :attr:`count`."""
        if len(self.known) >= self._room:
            self._forget()
        self.known[self.count] = self._contents[key] = ref(content)
        self.signature = hash((self.signature, content.place.kind))
        self.count += 1  # last: whoever has seen it finds all of them

    def span(self, token: Hashable, spec: TensorSpec, backend: SupportsSharedMemory[Any]) -> SharedSpan | None:
        """Return the memory that a view with gaps shares with others when it is back; None for all other tensors.

        Args:
            token: names the storage and its version.
            spec: of the tensor.
            backend: puts them back together.
        """
        name = span_of(token, spec)
        if name is None:
            return None
        span = self._spans.get(name)
        if span is None:
            span = self._spans[name] = SharedSpan(backend)
        return span

    def contents(self) -> Iterator[Content]:
        """Give the contents that are live."""
        return filter(None, (known() for known in list(self.known.values())))

    def close(self) -> None:
        """Take nothing for the same as what was saved here any more."""
        self._contents.clear()
        self._spans = WeakValueDictionary()

    def _forget(self) -> None:
        """Forget what is gone."""
        self.known = {index: known for index, known in self.known.items() if known() is not None}
        self._contents = {key: known for key, known in self._contents.items() if known() is not None}
        self._room = 2 * len(self.known) + _FEW
