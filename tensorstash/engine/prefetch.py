"""Reading ahead of backward: a guess of what will be asked for next, which only ever costs time."""

import threading
from collections import OrderedDict
from weakref import ref

from tensorstash.engine.budget import ByteBudget
from tensorstash.engine.payloads.dedup import Tape
from tensorstash.engine.payloads.payload import Payload
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.workers import Workers

NEAR_BYTES = 4 * 2**20
"""With so many bytes per reader decoded ahead, no more of what only has to be decoded is: that takes hardly longer than
a copy, and what waits decoded undoes what encoding has saved."""

_REMEMBERED_ORDERS = 64
_TO_HOST, _TO_DEVICE = 0, 1


class ReadAhead:
    """Loads what followed last time, within a budget. Thread-safe.

    The first time around a tape, payloads are expected in reverse order of packing. Afterwards the order is known by
    the tape's signature, so that alternating shapes, several graphs and changing control flow each find their own.

    Args:
        budget: bytes that all payloads together may hold decoded.
        readers: where loading runs.
        near_bytes: where this many wait decoded of payloads that are near, no more of those is begun.
    """

    __slots__ = ("__weakref__", "_lock", "_near", "_near_bytes", "_orders", "_readers", "budget")

    def __init__(self, budget: ByteBudget, readers: Workers, near_bytes: int = NEAR_BYTES) -> None:
        self.budget = budget
        self._readers = readers
        self._near_bytes = near_bytes
        self._near: list[ref[Payload]] = []
        self._orders: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def asked(self, tape: Tape, index: int) -> None:
        """Note that a payload was asked for, and start reading those that are expected next."""
        with self._lock:
            if not tape.is_expecting:
                tape.expect(self._orders.get(tape.signature, ()))
            tape.ask(index)
            near = [payload for known in self._near if (payload := known()) and payload.waits_beyond(index)]
            for payload in tape.coming(_TO_HOST):
                if not payload.wants_reading:
                    continue
                if payload.is_near and sum(other.nbytes for other in near) >= self._near_bytes:
                    break
                if not payload.read_ahead(self._readers.submit):
                    break
                if payload.is_near:
                    near.append(payload)
            self._near = [ref(payload) for payload in near]

    def bring(self, tape: Tape) -> None:
        """Start bringing what is expected next back to its device."""
        with self._lock:
            for payload in tape.coming(_TO_DEVICE):
                if not payload.bring_ahead():
                    break

    def learn(self, tape: Tape) -> None:
        """Remember the order in which the payloads of a finished tape were asked for."""
        with self._lock:
            if tape.asked:
                self._orders[tape.signature] = tape.asked
                self._orders.move_to_end(tape.signature)
                if len(self._orders) > _REMEMBERED_ORDERS:
                    self._orders.popitem(last=False)
