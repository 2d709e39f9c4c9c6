"""A number of bytes that is never exceeded, and whose bytes always come back."""

import threading
from operator import attrgetter
from time import monotonic
from weakref import ref

from tensorstash.host.forks import renew_after_fork

_LOOK_AGAIN_S = 0.02
"""How long who waits for bytes may not notice that some came back by themselves, in seconds."""


class Lease:
    """Bytes of a budget, taken for as long as this object lives, or until :meth:`release`."""

    __slots__ = ("__weakref__", "_budget", "_entry")

    def __init__(self, budget: "ByteBudget", nbytes: int) -> None:
        self._budget = budget
        self._entry = entry = _Entry(self, budget.returned)
        entry.nbytes = nbytes

    def release(self) -> None:
        """Give the bytes back and wake who waits for them; idempotent."""
        self._budget.give_back(self._entry)


class _Entry(ref[Lease]):
    """What a budget knows of a lease; equal only to itself."""

    __slots__ = ("nbytes",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    nbytes: int


_nbytes = attrgetter("nbytes")


class ByteBudget:
    """Bytes that may be in use at one time. Thread-safe.

    What is in use is the sum of the leases that live. Each is entered, and struck out when its last reference goes, by
    one operation of C; so whatever an interrupt ends, at whichever moment, and whoever forgets to give bytes back: they
    come back with the lease. Those who wait are woken by :meth:`Lease.release`, and find out about others soon.

    Args:
        limit: most bytes in use.

    >>> budget = ByteBudget(10)
    >>> lease = budget.try_acquire(8)
    >>> budget.used, budget.try_acquire(3)
    (8, None)
    >>> del lease
    >>> budget.used
    0
    """

    __slots__ = ("__weakref__", "_entries", "_lock", "_peak", "_waiting", "limit", "returned")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._peak = 0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Forget what other threads have taken, who are not there any more."""
        self._lock = threading.Lock()
        self._waiting: set[threading.Lock] = set()
        self._entries: set[_Entry] = set()
        self.returned = self._entries.discard
        """What a lease that goes is reported to; C, so that nothing interrupts it."""

    @property
    def used(self) -> int:
        """Bytes in use now."""
        return sum(map(_nbytes, list(self._entries)))  # a copy: the garbage collector may strike some out meanwhile

    @property
    def peak(self) -> int:
        """Most bytes that were in use at one time."""
        return self._peak

    def try_acquire(self, nbytes: int) -> Lease | None:
        """Take bytes if they fit now, without waiting; return None if they do not."""
        lease = Lease(self, nbytes)  # of nothing, until it is entered
        try:
            with self._lock:
                used = self.used + nbytes
                if used > self.limit:
                    return None
                self._entries.add(lease._entry)
                self._peak = max(self._peak, used)
        except BaseException:
            lease.release()  # the error may keep it alive
            raise
        return lease

    def acquire(self, nbytes: int, *, timeout_s: float) -> Lease | None:
        """Wait until the bytes fit and take them; return None if they did not within ``timeout_s`` seconds."""
        deadline = monotonic() + timeout_s
        while True:
            bell = threading.Lock()
            bell.acquire()
            self._waiting.add(bell)  # first: what comes back from here on rings it
            lease = self.try_acquire(nbytes)
            left = deadline - monotonic()
            if lease is None and left > 0:
                bell.acquire(timeout=min(left, _LOOK_AGAIN_S))
            self._waiting.discard(bell)
            if lease is not None or left <= 0:
                return lease

    def give_back(self, entry: _Entry) -> None:
        """Strike a lease out, and wake who waits."""
        self.returned(entry)
        while self._waiting:
            try:
                self._waiting.pop().release()
            except KeyError:  # another thread was faster
                break
