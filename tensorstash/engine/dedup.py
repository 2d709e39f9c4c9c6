"""Contents of one stretch of saves: those that are the same as an earlier one, and the order of their requests."""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any
from weakref import WeakValueDictionary, ref

from tensorstash.abilities import SupportsSharedMemory
from tensorstash.engine.content import Content
from tensorstash.engine.shared_span import SharedSpan, span_of
from tensorstash.spec import TensorSpec

_FEW = 64  # contents that are not worth forgetting


class Stretch:
    """Contents that were saved between two backward passes, known only weakly, and the order of their requests.

    A stretch of saves ends with the first unpack. Optimizers, ``.data`` and aliases through other libraries write
    without bumping a version, and they do so between backward and the next forward; so a content that was saved before
    the last unpack is never taken for the same again. A stretch without one may be endless, so dead contents
    are forgotten: it knows at most twice as many as are live, and a few.

    Another backward begins with the first request of the last one. Other repeated requests are no sign of one: a recipe
    may run several times. Not thread-safe; the session locks for saves, and the prefetcher for requests.
    """

    def __init__(self) -> None:
        self.count = self.expected = 0
        """Contents that were saved so far, and before the last request."""
        self.known: dict[int, ref[Content]] = {}
        """Those that are live, and perhaps some that have gone, by index."""
        self.same: dict[Hashable, ref[Content]] = {}
        """Those that a tensor may be the same as, by key."""
        self._spans: WeakValueDictionary[Hashable, SharedSpan] = WeakValueDictionary()
        self._room = _FEW
        self._places: dict[int, int] = {}  # in the expected order, by index
        self._asked: dict[int, int] = {}  # how often, in this backward
        self.to_host: deque[int] = deque()
        self.to_device: deque[int] = deque()
        """Indices that are expected next, nearest first, for threads that load and for copies back to a device."""

    def add(self, key: Hashable, content: Content) -> None:
        """Append a content, whose index is :attr:`count`."""
        if len(self.known) >= self._room:
            self.known = {index: known for index, known in self.known.items() if known() is not None}
            self.same = {same: known for same, known in self.same.items() if known() is not None}
            self._room = 2 * len(self.known) + _FEW
        self.known[self.count] = self.same[key] = ref(content)
        self.count += 1  # last: whoever has seen it finds all of them

    def span(self, token: Hashable, spec: TensorSpec, backend: SupportsSharedMemory[Any]) -> SharedSpan | None:
        """Return the memory that a view with gaps shares with others when it is back, by storage and version."""
        name = span_of(token, spec)
        span = None if name is None else self._spans.get(name)
        if name is not None and span is None:
            span = self._spans[name] = SharedSpan(backend)
        return span

    def contents(self) -> Iterator[Content]:
        """Give the contents that are live."""
        return filter(None, (known() for known in list(self.known.values())))

    def close(self) -> None:
        """Take no later tensor for the same as one that was saved here."""
        self.same.clear()
        self._spans = WeakValueDictionary()

    @property
    def asked(self) -> tuple[int, ...]:
        """Indices in the order in which they were first asked for."""
        return tuple(self._asked)

    def ask(self, index: int, order: tuple[int, ...]) -> None:
        """Note a request; the first sets the order of the others, of which those that it lacks come in reverse."""
        if self.expected != self.count:
            count = self.count  # first: another thread may be saving
            rest = {index for index, known in list(self.known.items()) if known() is not None}
            order = *order, *sorted(rest.difference(order), reverse=True)
            self._places = {index: place for place, index in enumerate(order)}
            self._begin()
            self.expected = count  # last: an interrupt may leave it undone
        times = self._asked.get(index, 0)
        if times and index == next(iter(self._asked)):
            content = self.known[index]()
            if content is not None and times >= max(content.users, 1):  # each of them has: this is another backward
                self._asked.clear()
                self._begin()
                times = 0
        self._asked[index] = times + 1
        places = self._places
        for indices in (self.to_host, self.to_device):
            while indices and places[indices[0]] <= places[index]:
                indices.popleft()

    def expects(self, content: Content) -> bool:
        """Whether somebody is still to ask for a content of this stretch in this backward."""
        return 0 < self._asked.get(content.index, 0) < content.users

    def _begin(self) -> None:
        rest = [index for index in self._places if index not in self._asked]
        self.to_host, self.to_device = deque(rest), deque(rest)
