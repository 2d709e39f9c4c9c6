"""Host memory in whole pages, as direct I/O wants it, and used again, because fresh pages cost more than a copy."""

import mmap
import sys
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
"""Unit, in bytes, of addresses, offsets and lengths of direct I/O: a page, and a multiple of every device's sector."""

HUGE_PAGE = 2 * 2**20
"""Size, in bytes, of the pages that make large buffers one run of physical memory."""

SMALLEST = 64 * 2**10
"""Buffers below this many bytes are not pooled: there the C allocator is as good."""

_CLASSES = 16


def round_up(nbytes: int) -> int:
    """Return the smallest multiple of :data:`BLOCK` that is not below ``nbytes``.

    >>> round_up(0), round_up(1), round_up(4096)
    (0, 4096, 4096)
    """
    return -(-nbytes // BLOCK) * BLOCK


def size_class(nbytes: int) -> int:
    """Return the bytes that a pool takes for ``nbytes``: at most a sixteenth more, so that similar sizes share buffers.

    >>> size_class(2**20), size_class(2**20 + 1), size_class(5_000_000)
    (1048576, 1114112, 5242880)
    """
    step = max(BLOCK, (1 << (nbytes - 1).bit_length()) // (2 * _CLASSES))
    return -(-nbytes // step) * step


def page_aligned(nbytes: int) -> NDArray[Any]:
    """Return fresh, uninitialised, writable bytes whose address is a multiple of :data:`BLOCK`.

    >>> page_aligned(10).ctypes.data % 4096
    0
    """
    raw = np.empty(nbytes + BLOCK, np.uint8)
    start = -raw.ctypes.data % BLOCK
    return raw[start : start + nbytes]


def mapped_pages(nbytes: int) -> NDArray[Any]:
    """Return fresh writable bytes of their own mapping, in huge pages where they fill some.

    The C allocator never sees them: they go back to the system when the last view goes.
    """
    if sys.platform == "win32":
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    huge = nbytes // HUGE_PAGE * HUGE_PAGE
    slack = HUGE_PAGE if huge else 0
    mapping = mmap.mmap(-1, nbytes + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw: NDArray[Any] = np.frombuffer(mapping, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE if huge else 0
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE, start, huge)
    return raw[start : start + nbytes]


class PagePool:
    """Buffers that come back by themselves when the last array over them goes. Thread-safe.

    Idle buffers and those in use are together never more than were in use at one time: payloads that were compressed
    have ever other sizes, and would fill the pool with buffers that nobody asks for again.

    Args:
        idle_limit_bytes: most bytes to keep for later; what comes back beyond that, the longest unused first, goes to
            the system at once.

    >>> pool = PagePool(2**20)
    >>> array = pool.take(2**20)
    >>> part = array[10:20]
    >>> del array
    >>> pool.idle_bytes
    0
    >>> del part
    >>> pool.idle_bytes
    1048576
    """

    def __init__(self, idle_limit_bytes: int) -> None:
        self.idle_bytes = 0
        self._limit = idle_limit_bytes
        self._idle: dict[int, list[NDArray[Any]]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> NDArray[Any]:
        """Return uninitialised, writable, page-aligned bytes that are the caller's until the last view of them goes."""
        if nbytes < SMALLEST:
            return page_aligned(nbytes)
        size = size_class(nbytes)
        pages = self._reuse(size)
        if pages is None:
            try:
                pages = mapped_pages(size)
            except OSError:
                return page_aligned(nbytes)  # a process may have only so many mappings
        # A view of an array refers to the array itself only if that one's memory belongs to something else: hence the
        # detour over a memoryview, without which the finalizer could run while a view is alive.
        lease: NDArray[Any] = np.frombuffer(pages.data, np.uint8)
        weakref.finalize(lease, self._give, pages).atexit = False
        return lease[:nbytes]

    def _reuse(self, size: int) -> NDArray[Any] | None:
        # Without waiting: a fork may have come while another thread held the lock, which then stays locked.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if size in self._idle:
                return self._pop(size, -1)
            self._trim(self.idle_bytes - size)  # what is mapped anew takes the place of what nobody asks for
            return None
        finally:
            self._lock.release()

    def _give(self, pages: NDArray[Any]) -> None:
        # A finalizer must not wait, and may run inside any method here: then the pages just go to the system.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._idle.setdefault(pages.size, []).append(pages)
            self.idle_bytes += pages.size
            self._trim(self._limit)
        finally:
            self._lock.release()

    def _trim(self, most_bytes: int) -> None:
        while self.idle_bytes > max(most_bytes, 0):
            self._pop(next(iter(self._idle)), 0)

    def _pop(self, size: int, place: int) -> NDArray[Any]:
        stack = self._idle[size]
        pages = stack.pop(place)
        self.idle_bytes -= size
        if not stack:
            del self._idle[size]
        return pages
