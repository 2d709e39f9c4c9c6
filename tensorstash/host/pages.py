"""Host memory in whole pages, as direct I/O wants it."""

import ctypes
import mmap
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
"""Unit, in bytes, of addresses, offsets and lengths of direct I/O: a page, and a multiple of every device's sector."""

HUGE_PAGE = 2 * 2**20
"""Size, in bytes, of the pages that make large buffers one run of physical memory."""

ALLOCATORS = ("tcmalloc_minimal", "tcmalloc", "jemalloc", "mimalloc")
"""Those that may stand in for the C library's."""

_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4


def physical_bytes() -> int:
    """Return the memory of the machine or its container, in bytes; of a system that does not say, more than any has."""
    if not hasattr(os, "sysconf"):  # Windows
        return 2**62
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CONTAINER_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):  # no container, or "max"
            continue
    return min(limits)


def free_bytes() -> int | None:
    """Return the bytes that are free on the machine or in its container; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii") for name in ("max", "current"))
    except OSError:  # no container
        return free
    return free if limit.strip() == "max" else min(free, max(int(limit) - int(used), 0))


def peak_bytes() -> int:
    """Return the largest resident size of this program, in bytes; 0 where the system does not say."""
    if os.path.exists("/proc/self/status"):  # getrusage counts the program that this one has replaced, too
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@cache
def preloaded_allocator() -> str | None:
    """Return the name of the allocator that replaces the C library's in this process, or None."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/maps") as maps:
        mapped = maps.read()
    return next((name for name in ALLOCATORS if f"lib{name}" in mapped), None)


def round_up(nbytes: int) -> int:
    """Return the smallest multiple of :data:`BLOCK` that is not below ``nbytes``.

    >>> round_up(0), round_up(1), round_up(4096)
    (0, 4096, 4096)
    """
    return -(-nbytes // BLOCK) * BLOCK


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


def move_pages(source: NDArray[Any], target: NDArray[Any]) -> bool:
    """Give the memory of one array, contents and all, to another; return False if the system does not do that.

    No byte is copied or cleared: the page tables change, which is a hundred times faster than fresh pages.

    Args:
        source: whole huge pages of :func:`mapped_pages`, which nobody uses; afterwards without memory, as when it was
            new.
        target: as many of another mapping; memory it has already is given back. Refused, they may be mapped no longer,
            and what is mapped there may be anybody's: nobody may touch them, nor unmap them (:func:`never_unmap`).
    """
    libc = _libc()
    if libc is None:
        return False
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    address = target.ctypes.data
    return bool(libc.mremap(source.ctypes.data, source.size, target.size, flags, address) == address)


def never_unmap(pages: NDArray[Any]) -> None:
    """Leave the mapping of some pages as it is for as long as the process lives: it may be somebody else's by now."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pages))


def release_pages(pages: NDArray[Any]) -> bool:
    """Give the memory of whole pages of :func:`mapped_pages` to the system; return False if it does not take a part.

    They are left without memory, as when they were new.
    """
    libc = _libc()
    return libc is not None and libc.madvise(pages.ctypes.data, pages.size, mmap.MADV_DONTNEED) == 0


@cache
def _libc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
    libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return libc
