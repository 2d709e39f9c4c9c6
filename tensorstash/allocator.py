"""What becomes of freed memory: the C allocator in use, and the settings under which savings are real.

On Linux, glibc serves activations from a heap that fragments: what is freed in the middle of it stays with the process,
and a spill that frees most of the activations may show no saving at all. Blocks that are mapped one by one go back when
they are freed, at the price of page faults; other allocators reuse memory better, at no price.
"""

import ctypes
import ctypes.util
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache

from tensorstash.pool import POOL
from tensorstash.sizes import parse_bytes

MMAP_THRESHOLD_BYTES = 1 << 20
"""Size from which blocks are mapped one by one; below it lie the temporaries of kernels, which come and go."""

_M_MMAP_THRESHOLD = -3
_ALLOCATORS = ("tcmalloc_minimal", "tcmalloc", "jemalloc", "mimalloc")
_THRESHOLD_VARIABLE = "MALLOC_MMAP_THRESHOLD_"


@cache
def preloaded_allocator() -> str | None:
    """Return the name of the allocator that replaces the C library's in this process, or None."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/maps") as maps:
        mapped = maps.read()
    return next((name for name in _ALLOCATORS if f"lib{name}" in mapped), None)


@cache
def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def returns_memory() -> bool:
    """Whether freed activations are known to leave this process, or to be reused without loss.

    True where another allocator than glibc's is in use, and where glibc's threshold is set.
    """
    return not _is_glibc() or preloaded_allocator() is not None or _THRESHOLD_VARIABLE in os.environ


def return_freed_memory(threshold_bytes: int = MMAP_THRESHOLD_BYTES) -> bool:
    """Make glibc map large blocks one by one from now on, so that they leave the process when they are freed.

    Call it before the first training step; blocks that exist stay where they are. It costs page faults: starting the
    program with ``python -m tensorstash`` under an allocator such as tcmalloc saves as much and costs less.

    Args:
        threshold_bytes: size from which blocks are mapped one by one, in bytes.

    Returns:
        Whether the setting was made; False where the C library is not glibc, or is replaced.
    """
    if not _is_glibc() or preloaded_allocator() is not None:
        return False
    was_set = bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, threshold_bytes))
    if was_set:
        os.environ[_THRESHOLD_VARIABLE] = str(threshold_bytes)  # for child processes, and for returns_memory
    return was_set


def keep_idle(nbytes: int | str) -> None:
    """Set how much freed host memory the package keeps for its own next buffers, in the whole process; thread-safe.

    What it keeps and what it uses are together never more than what it has used at one time, or than 16 MiB, so that
    the peak depends little on this. With less, memory goes back to the system between steps and within them, for the
    price of fresh pages later. Without this call it keeps 256 MiB.

    Args:
        nbytes: most bytes to keep, an int or text such as ``"64 MiB"``; 0 to keep none.

    Raises:
        ConfigError: not a size.

    >>> keep_idle("64 MiB")
    >>> keep_idle("256 MiB")
    """
    POOL.keep(parse_bytes(nbytes, path="keep_idle"))


def advised_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a program is best started: with another allocator, or with glibc's threshold set.

    What the user has set is left alone: a preloaded library or a threshold of their own.

    Args:
        environment: variables as they are.
    """
    advised = dict(environment)
    if not _is_glibc() or _THRESHOLD_VARIABLE in advised or "LD_PRELOAD" in advised:
        return advised
    library = installed_allocator()
    if library is not None:
        advised["LD_PRELOAD"] = library
    else:
        advised[_THRESHOLD_VARIABLE] = str(MMAP_THRESHOLD_BYTES)
    return advised


def installed_allocator() -> str | None:
    """Return the file name of the first allocator that this system has and that serves activations well, or None.

    Of those measured, tcmalloc costs nothing; jemalloc and mimalloc cost about what glibc's threshold does.
    """
    return ctypes.util.find_library(_ALLOCATORS[0]) or ctypes.util.find_library(_ALLOCATORS[1])
