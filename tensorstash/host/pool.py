"""Host memory that is used again, because fresh pages cost more than a copy."""

import threading
import weakref
from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pages import BLOCK, mapped_pages, page_aligned

SMALLEST = 64 * 2**10  # buffers below this many bytes are not pooled: there the C allocator is as good
_CLASSES = 16
_FEW = 16 * 2**20  # bytes that may be idle in any case: buffers of different sizes do not chase each other out
_SPARE_PART = 8  # one in so many of the bytes that were in use at one time are not kept idle beside the others

Pages = NDArray[Any]


@lru_cache(4096)
def size_class(nbytes: int) -> int:
    """Return the bytes that a pool takes for ``nbytes``: at most a sixteenth more, so similar sizes share buffers."""
    step = max(BLOCK, (1 << (nbytes - 1).bit_length()) // (2 * _CLASSES))
    return -(-nbytes // step) * step


class Loan(weakref.ref[Any]):
    """Something that is in use for as long as an object lives. Equal only to itself."""

    __slots__ = ("lent",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    lent: Any


class PagePool:
    """Buffers that come back by themselves when the last array over them goes. Thread-safe.

    Idle buffers and those in use together take at most seven eighths of the most bytes ever in use, and 16 MiB.
    Compressed payloads keep changing their size, and would fill the pool with buffers that nobody asks for again; and
    while most is in use, the rest of the process has its peak too. The 16 MiB are for sizes that take turns: without
    them each would return its pages to the system, and get cleared ones for the next.

    After an interrupt a buffer may count as in use until :meth:`take_stock`, and its bytes until no buffer is in use.
    """

    def __init__(self, idle_limit_bytes: int) -> None:
        self._limit = self._worth = idle_limit_bytes
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin with nothing: a thread of the parent, which the child lacks, may have been changing the pool."""
        self._lock = threading.Lock()
        self._idle: list[Pages] = []  # the longest unused first
        self._loans: set[Loan] = set()
        self._returned: deque[Loan] = deque()
        self._used = self._most_lately = 0
        self._most_together = _FEW  # in use and idle
        self.idle_bytes = 0
        """Bytes of buffers that nobody uses."""

    def take(self, nbytes: int) -> Pages:
        """Return uninitialised, writable, page-aligned bytes."""
        if nbytes < SMALLEST:
            return page_aligned(nbytes)
        try:
            return self._lend(size_class(nbytes))[:nbytes]
        except OSError:
            return page_aligned(nbytes)  # a process may have only so many mappings

    def take_stock(self) -> tuple[int, int]:
        """Return the bytes in use now, and the most that were in use at one time since the last call."""
        with self._lock:
            self._returned.extend([loan for loan in self._loans if loan() is None])  # an interrupt may have lost some
            self._settle()
            used, most, self._most_lately = self._used, self._most_lately, self._used
        return used, most

    def worth(self, nbytes: int) -> None:
        """Keep at most so many bytes idle from now on: as many as buffers save the user."""
        self._worth = min(self._limit, nbytes + nbytes // _CLASSES)  # as buffers of so many bytes take
        self.give_back(self._worth)

    def give_back(self, most_bytes: int) -> None:
        """Return idle memory to the system, the longest unused first, until at most ``most_bytes`` are idle."""
        if self.idle_bytes > most_bytes:
            with self._lock:
                self._settle()
                self._trim(most_bytes)

    def _lend(self, size: int) -> Pages:
        with self._lock:
            self._settle()
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].size == size:
                    pages = self._pop(place)
                    break
            else:
                pages = mapped_pages(size)
            # A view of an array refers to the array itself only if that one's memory belongs to something else: hence
            # the detour over a memoryview, without which the loan could end while a view is alive.
            array: Pages = np.frombuffer(pages.data, np.uint8)
            loan = Loan(array, self._comes_back)
            loan.lent = pages
            self._used += size
            self._loans.add(loan)
            if self._used > self._most_lately:
                self._most_lately = self._used
                self._most_together = max(self._most_together, self._used - self._used // _SPARE_PART + _FEW)
            self._trim(self._most_together - self._used)
            return array

    def _comes_back(self, loan: Loan) -> None:
        """Take a buffer back; called by finalizers, which may run inside any method here and must not wait."""
        self._returned.append(loan)
        while self._returned and not self._lock.locked():  # which it is where this thread holds it
            with self._lock:
                self._settle()
                most_bytes = min(self._worth, self._most_together - self._used)
                if self.idle_bytes > most_bytes:
                    self._trim(most_bytes)

    def _settle(self) -> None:
        """Take back buffers that have been returned."""
        while self._returned:
            loan = self._returned.popleft()
            if loan in self._loans:
                self._loans.discard(loan)
                self._used -= loan.lent.size
                self.idle_bytes += loan.lent.size
                self._idle.append(loan.lent)
        if not self._loans:
            self._used = 0

    def _trim(self, most_bytes: int) -> None:
        while self._idle and self.idle_bytes > most_bytes:
            self._pop(0)
        if not self._idle:
            self.idle_bytes = 0

    def _pop(self, place: int) -> Pages:
        pages = self._idle.pop(place)
        self.idle_bytes -= pages.size
        return pages


IDLE_BYTES = 256 * 2**20  # most bytes of host memory that the process keeps for the next large buffers
POOL = PagePool(IDLE_BYTES)  # of the process, as the C allocator is: buffers outlive the sessions they were made in
