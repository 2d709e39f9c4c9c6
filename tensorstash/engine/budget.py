"""A number of bytes that is never exceeded."""

import threading
from collections import deque
from time import monotonic


class ByteBudget:
    """Bytes that may be in use at one time. Thread-safe.

    Args:
        limit: most bytes in use.
    """

    __slots__ = ("_changed", "_dropped", "_peak", "_used", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        self._peak = 0
        self._changed = threading.Condition(threading.Lock())
        self._dropped: deque[int] = deque()

    @property
    def used(self) -> int:
        """Bytes in use now."""
        return self._used - sum(self._dropped)

    @property
    def peak(self) -> int:
        """Most bytes that were in use at one time."""
        return self._peak

    def try_acquire(self, nbytes: int) -> bool:
        """Take bytes if they fit now, without waiting."""
        with self._changed:
            return self._take(nbytes)

    def acquire(self, nbytes: int, *, timeout_s: float) -> bool:
        """Wait until the bytes fit and take them; return False if they did not within ``timeout_s`` seconds."""
        deadline = monotonic() + timeout_s
        with self._changed:
            while not self._take(nbytes):
                if not self._changed.wait(deadline - monotonic()):
                    return self._take(nbytes)
        return True

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._changed:
            self._used -= nbytes
            self._changed.notify_all()

    def drop(self, nbytes: int) -> None:
        """Give bytes back from a finalizer: takes no lock, wakes nobody, and counts from the next request on."""
        self._dropped.append(nbytes)

    def _take(self, nbytes: int) -> bool:
        while self._dropped:
            self._used -= self._dropped.popleft()
        if self._used + nbytes > self.limit:
            return False
        self._used += nbytes
        self._peak = max(self._peak, self._used)
        return True
