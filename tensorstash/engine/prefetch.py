"""Prefetch ahead of backward: a guess of the next requests, which only ever costs time."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any
from weakref import ref

from tensorstash.engine.content import Content
from tensorstash.engine.stretch import TO_DEVICE, TO_HOST, Stretch
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.pool import POOL
from tensorstash.host.workers import Workers

QUICK_BYTES = 4 * 2**20
"""With so many bytes per reader decoded ahead, nothing more is decoded alone: that takes hardly longer than
a copy, and decoded bytes that wait undo the saving of the codec."""

_REMEMBERED_ORDERS = 64


class Prefetcher:
    """Loads the contents of the next requests, within a budget. Thread-safe.

    The order is remembered by the number of saved tensors, so that a step of new shapes finds it, and several graphs
    each find their own. At first it is the reverse of packing.

    Args:
        budget: bytes that all contents together may hold decoded.
        readers: threads that load.
        quick_bytes: where this many wait decoded of contents that are quickly brought back, no more of those is begun.
        spare_bytes: returns how many bytes may be read ahead under a budget.
    """

    def __init__(
        self,
        budget: ByteBudget,
        readers: Workers,
        quick_bytes: int = QUICK_BYTES,
        spare_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.budget, self.readers = budget, readers
        self._quick_bytes, self._spare_bytes = quick_bytes, spare_bytes
        self._reserved = 0
        self._quick: dict[ref[Content], int] = {}
        """Bytes of quick contents that were brought back and not asked for yet, and perhaps of some that have gone."""
        self._gone: deque[ref[Content]] = deque()
        self._waiting = 0  # their sum
        self._large: ref[Content] | None = None
        self._orders: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def asked(self, stretch: Stretch, asked: Content) -> None:
        """Note that a content was asked for, and start reading those that are expected next of its stretch of saves."""
        order: tuple[int, ...] = ()
        budget, quick = self.budget, self._quick
        if stretch.expected != stretch.count:
            POOL.give_back(QUICK_BYTES)  # buffers that only forward uses: here a step has its peak
            order = self._orders.get(stretch.count, ())
        with self._lock:
            stretch.ask(asked.index, order)
            if quick:
                self._waiting -= quick.pop(ref(asked), 0)
                while self._gone:
                    self._waiting -= quick.pop(self._gone.popleft(), 0)
            else:
                self._waiting = 0  # an interrupt may have left bytes
            expected, known, spare = stretch.expected_next[TO_HOST], stretch.known, None
            while expected:
                content = known[expected[0]]() if expected[0] in known else None
                is_away = content is not None and content.stored is not None and content.lease is None
                if content is None or not is_away or not content.place.is_costly or content.place.is_now:
                    expected.popleft()
                    continue
                if content.is_quick and self._waiting >= self._quick_bytes:
                    break
                used = 0 if not self._reserved else budget.used if budget.gone else budget.taken
                if self._reserved and used + content.nbytes > budget.limit - self._reserved:
                    break
                if self._spare_bytes is not None:
                    spare = self._spare_bytes() if spare is None else spare
                    if content.nbytes > spare:
                        break
                    spare -= content.loaded_nbytes
                if not content.prefetch():
                    break
                if content.is_quick:
                    key = ref(content, self._gone.append)
                    self._waiting += content.nbytes - quick.get(key, 0)
                    quick[key] = content.nbytes
                expected.popleft()

    def hold(self, nbytes: int) -> Lease | None:
        """Take bytes for a content that was made again and will be asked for once more; None if there is no room.

        From then on so much more is left to these, up to half of the budget: to be made once more, a tensor needs all
        that it is made of once more, too.
        """
        lease = self.budget.try_acquire(nbytes)
        if lease is None:
            self._reserved = min(self._reserved + nbytes, self.budget.limit // 2)
        return lease

    def passes(self, content: Content) -> None:
        """Bring nothing back ahead until all have asked for a large content: a step has its peak beside it."""
        self._large = ref(content)

    def prefetch_to_device(self, stretch: Stretch) -> None:
        """Start bringing the next expected contents back to their device."""
        with self._lock:
            large = None if self._large is None else self._large()
            if large is not None and stretch.expects(large):
                return
            self._large = None
            expected, known = stretch.expected_next[TO_DEVICE], stretch.known
            group: list[Any] = []
            room_bytes = 0
            while expected:
                content = known[expected[0]]() if expected[0] in known else None
                room = room_bytes if content is None else content.prefetch_to_device(group, room_bytes)
                if room is None:
                    break
                room_bytes = room
                expected.popleft()
            if group:
                group[0].bring(group)

    def learn(self, stretch: Stretch) -> None:
        """Remember the order in which the contents of a finished step were asked for."""
        asked = stretch.asked
        with self._lock:
            if asked:
                self._orders[stretch.count] = asked
                self._orders.move_to_end(stretch.count)
                if len(self._orders) > _REMEMBERED_ORDERS:
                    self._orders.popitem(last=False)
