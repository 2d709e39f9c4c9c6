"""Host buffers: aligned allocation, who may write to an array, and a few of its bytes."""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from tensorstash.host.pages import HUGE_PAGE, page_aligned, preloaded_allocator
from tensorstash.host.pool import POOL, SMALLEST
from tensorstash.spec import ALIGNMENT
from tensorstash.spec import Array as Array  # plug-ins find it beside the functions that make one

_KEEPS_PAGES = preloaded_allocator() is not None  # the allocator reuses what is freed


def whole_pages(nbytes: int) -> Array:
    """Return uninitialised, writable bytes that start with a page, as direct I/O wants them."""
    # From the pool: fresh pages cost more than copying into them, and the C allocator may never give them back. An
    # allocator that reuses what is freed needs no pool, except for the pages that payloads have left idle.
    is_pools = not _KEEPS_PAGES or HUGE_PAGE <= nbytes <= POOL.idle_bytes
    return POOL.take(nbytes) if is_pools else page_aligned(nbytes)


def aligned_empty(nbytes: int, alignment: int = 0) -> Array:
    """Return uninitialised, writable bytes whose address modulo 64 is ``alignment``.

    >>> aligned_empty(10, 16).ctypes.data % 64, aligned_empty(2**20).ctypes.data % 4096
    (16, 0)
    """
    if nbytes >= SMALLEST:
        pages = whole_pages(nbytes + alignment)
        return pages[alignment:] if alignment else pages
    raw = np.empty(nbytes + 2 * ALIGNMENT, np.uint8)
    start = (alignment - address(raw)) % ALIGNMENT
    return raw[start : start + nbytes]


def payload_empty(nbytes: int) -> Array:
    """Return uninitialised, writable bytes for a payload, which stays from forward to backward."""
    # From the pool under any allocator: among a step's larger tensors, which come and go, payloads would leave gaps
    # that no tensor fits.
    return POOL.take(nbytes) if nbytes >= SMALLEST else aligned_empty(nbytes)


def address(array: Array) -> int:
    """Return where the first byte of an array lies."""
    at: int = array.__array_interface__["data"][0]  # ten times as fast as ``array.ctypes.data``
    return at


def lender(array: Array) -> Array:
    """Return the array whose memory it is, which lives as long as any view of that memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def copied(data: Array) -> Array:
    """Return a private copy of a run of bytes."""
    copy = aligned_empty(data.size)
    copy[:] = data
    return copy


def borrowed(array: Array) -> Array:
    """Return a read-only view: the receiver may read it for the length of the call and must not keep it.

    Ownership travels in the ``writeable`` flag: a writable array is private to its receiver, a read-only one belongs
    to somebody else.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def adopted(array: Array) -> Array:
    """Return a writable view of borrowed memory that its owner has left to the caller."""
    view = array.view()
    view.flags.writeable = True
    return view


def is_private(array: Array) -> bool:
    """Whether nobody else writes to the array's memory: it is writable, or a view of immutable ``bytes``.

    >>> is_private(np.zeros(3)), is_private(borrowed(np.zeros(3))), is_private(np.frombuffer(b"abc", np.uint8)[1:])
    (True, False, True)
    """
    return array.flags.writeable or isinstance(lender(array).base, bytes)


def as_bytes(array: Array) -> Array:
    """Return the array's memory as a one-dimensional ``uint8`` view (no copy), keeping the ``writeable`` flag."""
    return array.reshape(-1).view(np.uint8)


_WORDS = {2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
_SAMPLES = 16


def few_bytes(address: int, nbytes: int, itemsize: int) -> bytes:
    """Return some elements of memory that the caller keeps, spread over all of it, always the same ones."""
    kind, step = _words(nbytes, itemsize)
    return memoryview(kind.from_address(address))[::step].tobytes()


@lru_cache(1024)
def _words(nbytes: int, itemsize: int) -> tuple[Any, int]:
    word = _WORDS.get(itemsize, ctypes.c_uint8 if nbytes % 8 else ctypes.c_uint64)
    count = nbytes // ctypes.sizeof(word)
    return word * count, max(count // _SAMPLES, 1)
