"""Prefetch ahead of backward: a guess of what will be asked for next, which only ever costs time."""

import threading
from collections import OrderedDict
from collections.abc import Callable
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

    def asked(self, dedup: DedupIndex, index: int, foretold: Callable[[], tuple[int, ...]]) -> None:
        """Note that a payload was asked for, and start reading those that are expected next.

        Args:
            dedup: that it belongs to.
            index: of the payload in it.
            foretold: returns the order that the running backward will ask in, as far as that can be known; called
                where none was learned.
        """
        order: tuple[int, ...] = ()
        if dedup.needs_order:
            learned = self._orders.get(dedup.signature)
            order = foretold() if learned is None else learned  # without the lock: what it looks at may be let go
        with self._lock:
            dedup.ask(index, order)
            quick: list[Payload] = []  # mostly none
            for known in self._quick:
                if (payload := known()) is not None and payload.waits_beyond(index):
                    quick.append(payload)
            for payload in dedup.expected_next(_TO_HOST):
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

    def prefetch_to_device(self, dedup: DedupIndex) -> None:
        """Start bringing what is expected next back to its device."""
        with self._lock:
            for payload in dedup.expected_next(_TO_DEVICE):
                if not payload.prefetch_to_device():
                    break

    def learn(self, dedup: DedupIndex) -> None:
        """Remember the order in which the payloads of a finished step were asked for."""
        with self._lock:
            if dedup.asked:
                self._orders[dedup.signature] = dedup.asked
                self._orders.move_to_end(dedup.signature)
                if len(self._orders) > _REMEMBERED_ORDERS:
                    self._orders.popitem(last=False)
