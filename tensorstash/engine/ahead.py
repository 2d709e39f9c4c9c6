"""Reading ahead of backward: a guess of what will be asked for next, which only ever costs time."""

import threading
from collections import OrderedDict

from tensorstash.engine.budget import ByteBudget
from tensorstash.engine.tape import Tape
from tensorstash.workers import Workers

_REMEMBERED_ORDERS = 64
_TO_HOST, _TO_DEVICE = 0, 1


class ReadAhead:
    """Loads what followed last time, within a budget. Thread-safe.

    The first time around a tape, payloads are expected in reverse order of packing. Afterwards the order is known by
    the tape's signature, so that alternating shapes, several graphs and changing control flow each find their own.

    Args:
        budget: bytes that all payloads together may hold decoded.
        readers: where loading runs.
    """

    __slots__ = ("_lock", "_orders", "_readers", "budget")

    def __init__(self, budget: ByteBudget, readers: Workers) -> None:
        self.budget = budget
        self._readers = readers
        self._orders: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def asked(self, tape: Tape, index: int) -> None:
        """Note that a payload was asked for, and start reading those that are expected next."""
        with self._lock:
            if not tape.is_expecting:
                tape.expect(self._orders.get(tape.signature, ()))
            tape.ask(index)
            for payload in tape.coming(_TO_HOST):
                if payload.wants_reading and not payload.read_ahead(self._readers.submit):
                    break

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
