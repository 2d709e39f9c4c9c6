"""Host memory in whole pages, as direct I/O wants it."""

import mmap
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
"""Unit, in bytes, of addresses, offsets and lengths of direct I/O: a page, and a multiple of every device's sector."""

HUGE_PAGE = 2 * 2**20  # size, in bytes, of the pages that make large buffers one run of physical memory
ALLOCATORS = ("tcmalloc_minimal", "tcmalloc", "jemalloc", "mimalloc")  # those that may stand in for the C library's
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def physical_bytes() -> int:
    """Return the memory of the machine or its container, in bytes; of a system that does not say, more than any has."""
    if not hasattr(os, "sysconf"):  # Windows
        return 2**62
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no container, or "max"
            limits.append(int(Path(path).read_text("ascii")))
    return min(limits)


def free_bytes() -> int | None:
    """Return the bytes that are free on the machine or in its container; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    with suppress(OSError, ValueError):  # no container, or "max"
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii")) for name in ("max", "current"))
        free = min(free, max(limit - used, 0))
    return free


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
    """Return the smallest multiple of :data:`BLOCK` that is not below ``nbytes``."""
    return -(-nbytes // BLOCK) * BLOCK


def page_aligned(nbytes: int) -> NDArray[Any]:
    """Return fresh, uninitialised, writable bytes whose address is a multiple of :data:`BLOCK`."""
    raw = np.empty(nbytes + BLOCK, np.uint8)
    start = -raw.ctypes.data % BLOCK
    return raw[start : start + nbytes]


def mapped_pages(nbytes: int) -> NDArray[Any]:
    """Return fresh writable bytes of their own mapping, in huge pages where they fill some.

    They go back to the system when the last view goes.
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
