"""The tensors that were saved last: backward needs them first, so they may stay where they are."""

import threading
from collections import deque
from operator import itemgetter
from weakref import ref

from tensorstash.engine.payloads.payload import Payload
from tensorstash.host.forks import renew_after_fork

_nbytes = itemgetter(1)


class ResidentWindow:
    """Puts off the capture of what was saved last, within a number of bytes. Thread-safe.

    It knows payloads only weakly: a handle that is dropped meanwhile takes its payload with it, and what is still
    waiting when backward asks for it has never been moved.

    Args:
        limit: most bytes that may wait.
    """

    __slots__ = ("__weakref__", "_lock", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: deque[tuple[ref[Payload], int]] = deque()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def add(self, payload: Payload) -> list[Payload]:
        """Let a payload wait; return those that must no longer, the oldest first, perhaps with this one among them."""
        nbytes = max(payload.nbytes, 1)  # an empty one must not wait for ever
        with self._lock:
            self._waiting.append((ref(payload), nbytes))
            return self._due(self.limit)

    def clear(self) -> list[Payload]:
        """Let none wait any longer, and return them."""
        with self._lock:
            return self._due(0)

    def _due(self, most_bytes: int) -> list[Payload]:
        due: list[Payload] = []
        used = sum(map(_nbytes, self._waiting))  # counted anew: an interrupt may have come between two steps
        while used > most_bytes:
            known, nbytes = self._waiting.popleft()
            used -= nbytes
            if (payload := known()) is not None:
                due.append(payload)
        return due
