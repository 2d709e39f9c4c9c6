"""A limit of bytes in use that is never exceeded, and whose bytes always come back."""

import sys
import threading
from collections import deque
from contextlib import suppress
from time import monotonic

from tensorstash.host.pool import Loan

LOOK_AGAIN_S = 0.02  # longest delay, in seconds, until a waiting thread notices bytes that came back by themselves
MOST_SHARE = 256 * 2**20  # bytes that such a share never exceeds: with so many under way, no step goes faster with more
_LEAST_SHARE = 2**20
_LEAST_DEVICE_SHARE = 64 * 2**10
_PARTS = 16
_LARGEST = 2
_MOST_OF_STEP = 4


class Lease:
    """Bytes of a budget, taken for as long as this object lives, or until :meth:`release`."""

    __slots__ = ("__weakref__", "_budget", "_entry")
    _budget: "ByteBudget"
    _entry: Loan

    def release(self) -> None:
        """Give the bytes back and wake threads that wait for some; idempotent."""
        budget = self._budget
        budget.returned(self._entry)
        while budget._bells:
            with suppress(KeyError):  # another thread was faster
                budget._bells.pop().release()

    def follow(self, owner: object, nbytes: int) -> None:
        """Keep some of the bytes in use for as long as an object lives, whatever becomes of this lease."""
        budget = self._budget
        other = Loan(owner, budget.returned)
        with budget._lock:
            budget._entries[self._entry] = budget._entries.get(self._entry, 0) - nbytes
            budget._entries[other] = nbytes


class ByteBudget:
    """Bytes that may be in use at one time. Thread-safe.

    A lease leaves a note when its last reference goes, by one operation of C, and the next request reads the notes: no
    finalizer takes a lock. After an interrupt more bytes may count as in use than leases hold, until they are counted
    anew: by a thread that waits, or at the end of a step.
    """

    __slots__ = ("__weakref__", "_bells", "_entries", "_lock", "gone", "limit", "peak", "returned", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most bytes in use; may be raised at any time."""
        self.peak = 0
        """Most bytes that were in use at one time."""
        self.taken = 0
        """Bytes in use, those of :attr:`gone` among them."""
        self.gone: deque[Loan] = deque()
        """Leases that have come back since the last request."""
        self.returned = self.gone.append
        """Receives the lease that goes; C, so that nothing interrupts it."""
        self._entries: dict[Loan, int] = {}
        self._bells: set[threading.Lock] = set()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes in use now."""
        if self.gone:
            self.try_acquire(sys.maxsize)  # reads the notes
        return self.taken

    def try_acquire(self, nbytes: int) -> Lease | None:
        """Take bytes if they fit now, without waiting; return None if they do not."""
        gone, entry = self.gone, None
        if not gone and self.taken + nbytes > self.limit:
            return None
        try:
            with self._lock:
                while gone:
                    self.taken -= self._entries.pop(gone[0], 0)
                    gone.popleft()
                used = self.taken + nbytes
                if used > self.limit:
                    return None
                lease = Lease()
                entry = Loan(lease, self.returned)
                lease._budget, lease._entry = self, entry
                self.taken = used
                self._entries[entry] = nbytes
                if used > self.peak:
                    self.peak = used
                return lease
        except BaseException:
            if entry is not None:
                self.returned(entry)  # the error may keep the lease alive
            raise

    def acquire(self, nbytes: int, *, timeout_s: float) -> Lease | None:
        """Wait until the bytes fit and take them; return None if they did not within ``timeout_s`` seconds."""
        deadline = monotonic() + timeout_s
        while (lease := self.try_acquire(nbytes)) is None:
            if not self.wait(self.limit - nbytes, timeout_s=deadline - monotonic()):
                break
        return lease

    def wait(self, most_bytes: int, *, timeout_s: float) -> bool:
        """Wait until at most ``most_bytes`` are in use; return whether that was within ``timeout_s`` seconds."""
        deadline = monotonic() + timeout_s
        while self.used > most_bytes:
            left = deadline - monotonic()
            if left <= 0:
                return False
            bell = threading.Lock()
            bell.acquire()
            self._bells.add(bell)  # first: bytes that come back from here on ring it
            self.count_anew()
            if self.used > most_bytes:
                bell.acquire(timeout=min(left, LOOK_AGAIN_S))
            self._bells.discard(bell)
        return True

    def count_anew(self) -> None:
        """Count the bytes of the leases that there are."""
        with self._lock:
            self.taken = sum(self._entries.values())


def share_of(step_bytes: int, largest: int) -> int:
    """Return how many bytes may be under way in one direction, of a step that saves so many."""
    # Room for two of the largest tensors, so that one is on its way while the next arrives; never more than a quarter,
    # so that at least half of the bytes that the policy takes away are always gone.
    share = max(step_bytes // _PARTS, min(_LARGEST * largest, step_bytes // _MOST_OF_STEP))
    return min(max(share, _LEAST_SHARE), MOST_SHARE)


class Shares:
    """Budgets that are a share of the bytes of a step. Thread-safe.

    They grow while a step takes more than any before, and never shrink: a program must have the memory for its
    largest step. They are counted without a lock; an update lost to another thread makes them a little smaller.
    """

    __slots__ = ("_budgets", "_device_budgets", "_largest", "_most_bytes", "_step_bytes")

    def __init__(self) -> None:
        self._budgets: list[ByteBudget] = []
        self._device_budgets: list[ByteBudget] = []
        self._step_bytes = self._largest = 0
        self._most_bytes = 0  # of a step, since a tensor was the largest

    def follow(self, budget: ByteBudget, *, on_device: bool = False) -> None:
        """Let a budget be :func:`share_of` a step, or one of a device a sixteenth, however many bytes that is."""
        # On a device a larger tensor, such as logits, is under way alone: others would take the room for it while it
        # is computed, when most models have their peak.
        budget.limit = _LEAST_DEVICE_SHARE if on_device else _LEAST_SHARE
        (self._device_budgets if on_device else self._budgets).append(budget)

    def saw(self, nbytes: int) -> None:
        """Note that a step is about to take so many bytes."""
        self._step_bytes += nbytes
        if nbytes > self._largest or self._step_bytes > self._most_bytes:
            self._largest, self._most_bytes = max(self._largest, nbytes), self._step_bytes
            for budget in self._budgets:
                budget.limit = max(budget.limit, share_of(self._step_bytes, self._largest))
            for budget in self._device_budgets:
                budget.limit = max(budget.limit, self._step_bytes // _PARTS)

    def step_ended(self) -> None:
        """Note that a step has ended."""
        self._step_bytes = 0
