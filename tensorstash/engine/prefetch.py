"""The order in which backward asks for saved contents, and prefetch by it: a guess, which only ever costs time."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any
from weakref import ref

from tensorstash.engine.content import Content
from tensorstash.engine.dedup import Stretch
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.pool import POOL
from tensorstash.host.workers import Workers

QUICK_BYTES = 4 * 2**20
"""With so many bytes per reader decoded ahead, no more are: decoding takes hardly longer than a copy, and decoded bytes
that wait undo the saving of the codec."""

_REMEMBERED_ORDERS = 64


class Prefetcher:
    """Loads the contents of the next requests, on threads and within a budget of decoded bytes. Thread-safe.

    The order is remembered by the number of saved tensors, so that a step of new shapes finds it, and several graphs
    each find their own. At first it is the reverse of packing. Of contents that are quickly brought back, no more are
    begun while ``quick_bytes`` wait; under a budget, none beyond its spare bytes.
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
        self._quick: dict[ref[Content], int] = {}  # bytes of those that were brought back and not asked for yet
        self._gone: deque[ref[Content]] = deque()  # of these, since the last request
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
            expected, known, spare = stretch.to_host, stretch.known, None
            while expected:
                content = known[expected[0]]() if expected[0] in known else None
                is_away = content is not None and content.stored is not None and content.lease is None
                if content is None or not is_away or not content.place.is_costly or content.place.is_now:
                    expected.popleft()
                    continue
                if content.is_quick and self._waiting >= self._quick_bytes:
                    break
                if self._reserved and budget.used + content.nbytes > budget.limit - self._reserved:
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

        From then on so much more is left to these, up to half of the budget: they need all that they are made of, too.
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
            expected, known = stretch.to_device, stretch.known
            group: list[Any] = []
            lease, room_bytes = None, 0
            while expected:
                content: Any = known[expected[0]]() if expected[0] in known else None
                size = 0 if content is None else content.bytes_to_bring
                if size is None:
                    break
                if size and not group:
                    near = content.place.transfers.near(size)
                    if near is None:
                        break  # as nearly always in the end
                    lease, room_bytes = near
                elif size > room_bytes or (size and content.spec.device != group[0].spec.device):
                    break
                if size:
                    group.append(content)
                    room_bytes -= size
                expected.popleft()
            if group:
                group[0].bring(group, lease)

    def learn(self, stretch: Stretch) -> None:
        """Remember the order in which the contents of a finished step were asked for."""
        asked = stretch.asked
        with self._lock:
            if asked:
                self._orders[stretch.count] = asked
                self._orders.move_to_end(stretch.count)
                if len(self._orders) > _REMEMBERED_ORDERS:
                    self._orders.popitem(last=False)
