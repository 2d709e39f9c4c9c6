"""Prefetch ahead of backward: a guess of what will be asked for next, which only ever costs time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import attrgetter
from weakref import ref

from tensorstash.engine.payloads.dedup import DedupIndex
from tensorstash.engine.payloads.payload import Payload
from tensorstash.host.budget import ByteBudget
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.workers import Workers

QUICK_BYTES = 4 * 2**20
"""With so many bytes per reader decoded ahead, no more of what only has to be decoded is: that takes hardly longer than
a copy, and what waits decoded undoes what encoding has saved."""

_nbytes = attrgetter("nbytes")
_REMEMBERED_ORDERS = 64

_FEW = 64
"""Payloads that were read ahead and are not worth forgetting."""

_TO_HOST, _TO_DEVICE = 0, 1


class Requests:
    """What backward asks for of one stretch of saves: what it has asked for, and what it is expected to.

    Not thread-safe; the prefetcher locks.

    Args:
        saved: the stretch.
    """

    __slots__ = ("_asked", "_cursors", "_expected", "_order", "_places", "saved")

    def __init__(self, saved: DedupIndex) -> None:
        self.saved = saved
        self._expected = 0
        self._order: list[int] = []
        self._places: dict[int, int] = {}
        self._asked: dict[int, None] = {}
        self._cursors = [0, 0]

    @property
    def asked(self) -> tuple[int, ...]:
        """Indices in the order in which they were first asked for."""
        return tuple(self._asked)

    @property
    def needs_order(self) -> bool:
        """Whether the next request is the first since something was saved."""
        return self._expected != self.saved.count

    def ask(self, index: int, order: tuple[int, ...]) -> None:
        """Note a request, and expect the others in this order, and those that it lacks behind, the last saved first.

        Args:
            index: of the payload.
            order: indices; it counts with the first request since something was saved.
        """
        if self._expected != self.saved.count:
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
            known = self.saved.known.get(self._order[self._cursors[reader]])
            payload = None if known is None else known()
            if payload is not None:
                yield payload
            self._cursors[reader] += 1

    def _expect(self, known_order: tuple[int, ...]) -> None:
        count = self.saved.count  # first: another thread may be saving
        rest = {index for index, known in list(self.saved.known.items()) if known() is not None}
        self._order = [*known_order, *sorted(rest.difference(known_order), reverse=True)]
        self._places = {index: place for place, index in enumerate(self._order)}
        self._expected = count  # last: an interrupt may leave it undone


class Prefetcher:
    """Loads what will be asked for next, within a budget. Thread-safe.

    The order is remembered by the signature of what was saved, so that alternating shapes, several graphs and changing
    control flow each find their own. At first it is what the framework's graph tells, or else the reverse of packing.

    Args:
        budget: bytes that all payloads together may hold decoded.
        readers: where loading runs.
        quick_bytes: where this many wait decoded of payloads that are quickly brought back, no more of those is begun.
    """

    __slots__ = ("__weakref__", "_lock", "_orders", "_prefetched", "_quick", "_quick_bytes", "_readers", "budget")

    def __init__(self, budget: ByteBudget, readers: Workers, quick_bytes: int = QUICK_BYTES) -> None:
        self.budget = budget
        self._readers = readers
        self._quick_bytes = quick_bytes
        self._prefetched: list[ref[Payload]] = []
        self._quick: list[ref[Payload]] = []
        self._orders: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def asked(self, requests: Requests, index: int, foretold: Callable[[], tuple[int, ...]]) -> None:
        """Note that a payload was asked for, and start reading those that are expected next.

        Args:
            requests: for what was saved with it.
            index: of the payload.
            foretold: returns the order that the running backward will ask in, as far as that can be known; called
                where none was learned.
        """
        order: tuple[int, ...] = ()
        if requests.needs_order:
            learned = self._orders.get(requests.saved.signature)
            order = foretold() if learned is None else learned  # without the lock: what it looks at may be let go
        with self._lock:
            requests.ask(index, order)
            quick: list[Payload] = []  # mostly none
            for known in self._quick:
                if (payload := known()) is not None and payload.waits_beyond(index):
                    quick.append(payload)
            for payload in requests.expected_next(_TO_HOST):
                if not payload.wants_reading:
                    continue
                if payload.is_quick and sum(map(_nbytes, quick)) >= self._quick_bytes:
                    break
                if not payload.prefetch(self._readers.submit):
                    break
                self._prefetched.append(ref(payload))
                if payload.is_quick:
                    quick.append(payload)
            self._quick = list(map(ref, quick))
            if len(self._prefetched) > _FEW:
                still = (known for known in self._prefetched if (payload := known()) and payload.is_prefetched)
                self._prefetched = list(still)

    def drop(self, nbytes: int) -> int:
        """Drop what was read ahead, the part that is expected last first; it is read again when it is asked for.

        Args:
            nbytes: at least so many bytes, if that many are there.

        Returns:
            The bytes that were dropped.

        Raises:
            StoreError: what is being read did not arrive in time.
        """
        dropped = 0
        while dropped < nbytes:
            with self._lock:
                if not self._prefetched:
                    break
                payload = self._prefetched.pop()()
            dropped += 0 if payload is None else payload.drop()
        return dropped

    def prefetch_to_device(self, requests: Requests) -> None:
        """Start bringing what is expected next back to its device."""
        with self._lock:
            for payload in requests.expected_next(_TO_DEVICE):
                if not payload.prefetch_to_device():
                    break

    def learn(self, requests: Requests) -> None:
        """Remember the order in which the payloads of a finished step were asked for."""
        signature, asked = requests.saved.signature, requests.asked
        with self._lock:
            if asked:
                self._orders[signature] = asked
                self._orders.move_to_end(signature)
                if len(self._orders) > _REMEMBERED_ORDERS:
                    self._orders.popitem(last=False)
