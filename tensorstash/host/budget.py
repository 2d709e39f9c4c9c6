"""A number of bytes that is never exceeded, and whose bytes always come back."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any
from weakref import ref

LOOK_AGAIN_S = 0.02
"""Longest delay, in seconds, until a waiting thread notices bytes that came back by themselves."""


MOST_SHARE = 256 * 2**20
"""Bytes that such a share never exceeds: with so many under way, no step goes faster with more."""

_LEAST_SHARE = 2**20
_LEAST_DEVICE_SHARE = 64 * 2**10
_FEW = 2 * 2**20
_PARTS = 16
_LARGEST = 2
_MOST_OF_STEP = 4


class Lease:
    """Bytes of a budget, taken for as long as this object lives, or until :meth:`release`."""

    __slots__ = ("__weakref__", "_budget", "_entry")
    _budget: "ByteBudget"
    _entry: "_Entry"

    def release(self) -> None:
        """Give the bytes back and wake who waits for them; idempotent."""
        budget = self._budget
        budget.returned(self._entry)
        if budget._waiting:
            budget._wake()

    def follow(self, owner: object, nbytes: int) -> None:
        """Let so many of the bytes be in use for as long as an object lives, whatever becomes of this lease."""
        budget, entry = self._budget, self._entry
        other = _Entry(owner, budget.returned)
        other.nbytes = 0
        with budget._lock:
            budget._entries.add(other)
            other.nbytes, entry.nbytes = nbytes, entry.nbytes - nbytes  # no call is between the two


class _Entry(ref[Any]):
    """The share of a budget that belongs to a lease, or to its companion; equal only to itself."""

    __slots__ = ("nbytes",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    nbytes: int


class ByteBudget:
    """Bytes that may be in use at one time. Thread-safe.

    A lease leaves a note when its last reference goes, by one operation of C; so whatever an interrupt ends, at
    whichever moment, and whoever forgets to give bytes back: they come back with the lease. The bytes in use are a sum,
    which is changed together with those of a lease, where no interrupt can come between; so a request takes the
    same time however many leases there are. Those who wait are woken by :meth:`Lease.release`, and find out about
    others soon.

    Args:
        limit: most bytes in use; may be raised at any time.

    >>> budget = ByteBudget(10)
    >>> lease = budget.try_acquire(8)
    >>> budget.used, budget.try_acquire(3)
    (8, None)
    >>> del lease
    >>> budget.used
    0
    """

    __slots__ = ("__weakref__", "_entries", "_lock", "_peak", "_waiting", "gone", "limit", "returned", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._peak = 0
        self._lock = threading.Lock()
        self._waiting: set[threading.Lock] = set()
        self.taken = 0
        """Bytes in use, those of :attr:`gone` among them."""
        self._entries: set[_Entry] = set()
        self.gone: deque[_Entry] = deque()
        """Leases that have come back since somebody has looked."""
        self.returned = self.gone.append
        """Receives the lease that goes; C, so that nothing interrupts it."""

    @property
    def used(self) -> int:
        """Bytes in use now."""
        if self.gone:
            self.try_acquire(sys.maxsize)  # which finds out
        return self.taken

    @property
    def peak(self) -> int:
        """Most bytes that were in use at one time."""
        return self._peak

    def try_acquire(self, nbytes: int) -> Lease | None:
        """Take bytes if they fit now, without waiting; return None if they do not."""
        gone, lease = self.gone, None
        if not gone and self.taken + nbytes > self.limit:
            return None
        try:
            with self._lock:
                while gone:  # bytes that came back, each as often as an interrupt wants it
                    entry = gone[0]
                    self.taken, entry.nbytes = self.taken - entry.nbytes, 0  # no call is between the two
                    self._entries.discard(entry)
                    gone.popleft()
                used = self.taken + nbytes
                if used > self.limit:
                    return None
                fresh = Lease()  # of nothing, until it is entered
                fresh._budget, fresh._entry = self, _Entry(fresh, self.returned)
                lease, entry = fresh, fresh._entry
                entry.nbytes = 0
                self._entries.add(entry)
                self.taken, entry.nbytes = used, nbytes  # no call is between the two
                if used > self._peak:
                    self._peak = used
        except BaseException:
            if lease is not None:
                lease.release()  # the error may keep it alive
            raise
        return lease

    def acquire(self, nbytes: int, *, timeout_s: float) -> Lease | None:
        """Wait until the bytes fit and take them; return None if they did not within ``timeout_s`` seconds."""
        lease = self.try_acquire(nbytes)
        if lease is not None:
            return lease
        deadline = monotonic() + timeout_s
        while True:
            bell = threading.Lock()
            bell.acquire()
            self._waiting.add(bell)  # first: bytes that come back from here on ring it
            lease = self.try_acquire(nbytes)
            left = deadline - monotonic()
            if lease is None and left > 0:
                bell.acquire(timeout=min(left, LOOK_AGAIN_S))
            self._waiting.discard(bell)
            if lease is not None or left <= 0:
                return lease

    def wait_until_unused(self, *, timeout_s: float) -> bool:
        """Wait until all bytes are there at once, however many that are meanwhile; return whether they were."""
        while True:
            limit = self.limit
            if self.acquire(limit, timeout_s=timeout_s) is None:
                return False
            if self.limit <= limit:
                return True

    def _wake(self) -> None:
        while self._waiting:
            try:
                self._waiting.pop().release()
            except KeyError:  # another thread was faster
                break


def share_of(step_bytes: int, largest: int) -> int:
    """Return how many bytes may be under way in one direction, of a step that saves so many.

    A sixteenth, and room for two of the largest tensors, so that one is on its way while the next arrives; but never
    more than a quarter: at least half of the bytes that the policy takes away are always gone. Of a small step it may
    be an eighth, up to 2 MiB: with less, the handover takes most of the time.

    Args:
        step_bytes: saved by the step.
        largest: bytes of its largest tensor.

    >>> [share_of(n * 2**20, 2**20) // 2**20 for n in (0, 8, 40, 320, 8000)]
    [1, 2, 2, 20, 256]
    """
    share = max(
        step_bytes // _PARTS, min(_LARGEST * largest, step_bytes // _MOST_OF_STEP), min(_FEW, 2 * step_bytes // _PARTS)
    )
    return min(max(share, _LEAST_SHARE), MOST_SHARE)


def device_share_of(step_bytes: int, largest: int) -> int:
    """Return how many bytes may be under way between a device and the host; otherwise as :func:`share_of`.

    A sixteenth of the step, without an upper end. A larger tensor, such as logits, is under way alone: room for it
    would be taken by others while it is computed, which is when most models have their peak.

    >>> device_share_of(2**34, 2**32) // 2**20
    1024
    """
    return max(step_bytes // _PARTS, _LEAST_DEVICE_SHARE)


class Shares:
    """Budgets that are a share of the bytes of a step. Thread-safe.

    They grow while a step takes more than any before, and never shrink: it is its largest step that a program has to
    have the memory for. They are counted without a lock; an update lost to another thread makes them a little smaller.

    >>> shares = Shares()
    >>> budget = shares.budget(MOST_SHARE, is_share=True)
    >>> for _ in range(40):
    ...     shares.saw(2**20)
    >>> budget.limit // 2**20
    2
    """

    __slots__ = ("_budgets", "_largest", "_most_bytes", "_step_bytes")

    def __init__(self) -> None:
        self._budgets: list[tuple[ByteBudget, Callable[[int, int], int]]] = []
        self._step_bytes = self._largest = 0
        self._most_bytes = 0  # of a step, since a tensor was the largest

    def budget(self, most_bytes: int, *, is_share: bool) -> ByteBudget:
        """Return a budget of a share, or of so many bytes."""
        budget = ByteBudget(most_bytes)
        if is_share:
            self.follow(budget)
        return budget

    def follow(self, budget: ByteBudget, rule: Callable[[int, int], int] = share_of) -> None:
        """Let a budget be a share from now on.

        Args:
            budget: bytes under way.
            rule: returns the share of a step, by its bytes and its largest tensor.
        """
        budget.limit = rule(self._step_bytes, self._largest)
        self._budgets.append((budget, rule))

    def saw(self, nbytes: int) -> None:
        """Note that a step is about to take so many bytes."""
        if self._budgets:
            self._step_bytes += nbytes
            if nbytes > self._largest or self._step_bytes > self._most_bytes:
                self._largest, self._most_bytes = max(self._largest, nbytes), self._step_bytes
                for budget, rule in self._budgets:
                    budget.limit = max(budget.limit, rule(self._step_bytes, self._largest))

    def step_ended(self) -> None:
        """Note that a step has ended."""
        self._step_bytes = 0
