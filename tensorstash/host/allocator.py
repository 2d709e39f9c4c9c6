"""What becomes of freed memory: the C allocator in use, and the settings under which savings are real.

On Linux, glibc serves activations from a heap that fragments: what is freed in the middle of it stays with the process,
and a spill that frees most of the activations may show no saving at all. Blocks that are mapped one by one go back when
they are freed, at the price of page faults; other allocators reuse memory better, at no price.

>>> import tensorstash as ts
>>> ts.allocator.returns_memory() in (True, False)
True
"""

import ctypes
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from tensorstash.host.pages import ALLOCATORS, preloaded_allocator
from tensorstash.host.pool import POOL
from tensorstash.sizes import parse_bytes

MMAP_THRESHOLD_BYTES = 1 << 20
"""Size from which blocks are mapped one by one; below it lie the temporaries of kernels, which come and go."""

_M_MMAP_THRESHOLD = -3
_THRESHOLD_VARIABLE = "MALLOC_MMAP_THRESHOLD_"


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


def release_free() -> None:
    """Give memory that is free back to the system, where the allocator (glibc's or tcmalloc) can be asked to.

    Between blocks that stay, free memory is resident until others need it.

    >>> release_free()
    """
    if sys.platform != "linux":
        return
    loaded = ctypes.CDLL(None)
    if hasattr(loaded, "malloc_trim"):
        loaded.malloc_trim(0)
    if hasattr(loaded, "MallocExtension_ReleaseFreeMemory"):
        loaded.MallocExtension_ReleaseFreeMemory()


def keep_idle(nbytes: int | str) -> None:
    """Set how much freed host memory the package keeps for its own next buffers, in the whole process; thread-safe.

    What it keeps and what it uses are together hardly more than what it has used at one time, or than 16 MiB, and where
    backward begins it keeps hardly any, so that the peak depends little on this. With less, memory goes back to the
    system between steps and within them, for the price of fresh pages later. Without this call it keeps 256 MiB.

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
    """Return the absolute path of the first allocator that this system has and that serves activations well, or None.

    Only what the system's own list of libraries names is taken, and nobody but its owner can replace: no search path
    of the environment has a say in what a program is made to load.

    Of those measured, tcmalloc costs nothing; jemalloc and mimalloc cost about what glibc's threshold does.
    """
    known = _listed_libraries()
    for name in ALLOCATORS[:2]:
        for path in known:
            if os.path.basename(path).startswith(f"lib{name}.so") and _is_loadable(path):
                return path
    return None


def _listed_libraries() -> list[str]:
    """Return the paths of the libraries that the dynamic loader's cache lists."""
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True, env={}).stdout
    except (OSError, subprocess.SubprocessError):  # there is no such program, or no cache
        return []
    paths = (line.partition(" => ")[2] for line in listed.splitlines())
    return [path for path in paths if os.path.isabs(path)]


def _is_loadable(path: str) -> bool:
    """Whether a library is for this processor, and its file and folder are to be written to by their owner alone."""
    try:
        places = [os.stat(path), os.stat(os.path.dirname(os.path.realpath(path)))]
        is_safe = all(
            found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for found in places
        )
        return is_safe and _machine(path) == _machine(sys.executable)
    except OSError:
        return False


def _machine(path: str) -> tuple[bytes, bytes]:
    """Return what the head of an ELF file says about word size, byte order and processor."""
    with open(path, "rb") as file:
        head = file.read(20)
    return head[:6], head[18:]
