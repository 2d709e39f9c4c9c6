"""The C allocator's settings: under which freed activations leave the process.

On Linux, glibc serves activations from a heap that fragments: memory that is freed in the middle of it stays with the
process. Blocks that are mapped one by one go back when they are freed, for the price of page faults. The launcher
avoids these: it preloads mimalloc where the extra ``mimalloc`` is installed, and sets huge pages elsewhere.

>>> import tensorstash as ts
>>> ts.allocator.returns_memory() in (True, False)
True
"""

import ctypes
import logging
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from tensorstash.host.pages import ALLOCATORS, preloaded_allocator

logger = logging.getLogger("tensorstash")

MMAP_THRESHOLD_BYTES = 1 << 20
"""Size from which blocks are mapped one by one; below it lie the temporaries of kernels, which come and go."""

CHOICE = "TENSORSTASH_ALLOCATOR"
"""The variable that keeps policies from setting the allocator, with the value ``leave``."""
_M_MMAP_THRESHOLD = -3
_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
_TUNABLES = "GLIBC_TUNABLES"


@cache
def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _is_set(environment: Mapping[str, str]) -> bool:
    return _THRESHOLD in environment or "mmap_threshold" in environment.get(_TUNABLES, "")


def returns_memory() -> bool:
    """Whether freed activations leave this process: another allocator is in use, or glibc's threshold is set."""
    return not _is_glibc() or preloaded_allocator() is not None or _is_set(os.environ)


def return_freed_memory() -> bool:
    """Make glibc map large blocks one by one from now on, so that they leave the process when they are freed.

    Policies that free host memory call it when they first do so. Blocks that exist stay where they are. Return whether
    the setting was made; False where the C library is not glibc, or is replaced.
    """
    if not _is_glibc() or preloaded_allocator() is not None:
        return False
    was_set = bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))
    if was_set:
        os.environ[_THRESHOLD] = str(MMAP_THRESHOLD_BYTES)  # for child processes, and for returns_memory
    return was_set


def set_for_policies() -> None:
    """Call :func:`return_freed_memory` unless freed memory leaves already, or the user has chosen to leave it."""
    if os.environ.get(CHOICE) != "leave" and not returns_memory() and return_freed_memory():
        logger.info(
            "glibc maps blocks of 1 MiB and more one by one from now on, so that freed activations leave the process. "
            "That costs page faults: `python -m tensorstash SCRIPT` avoids them. %s=leave keeps glibc as it is.",
            CHOICE,
        )


def advised_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a program is best started: mimalloc preloaded, or glibc's threshold set.

    A preloaded allocator and a threshold of the user are left alone.
    """
    advised = dict(environment)
    preloaded = advised.get("LD_PRELOAD", "")
    is_replaced = any(f"lib{name}" in preloaded for name in ALLOCATORS)
    if not _is_glibc() or _is_set(advised) or is_replaced or advised.get(CHOICE) == "leave":
        return advised
    if mimalloc := mimalloc_library():
        advised["LD_PRELOAD"] = f"{mimalloc}:{preloaded}".rstrip(":")
    else:
        advised[_THRESHOLD] = str(MMAP_THRESHOLD_BYTES)
        # Without effect before glibc 2.35, and where the system has no huge pages.
        advised[_TUNABLES] = ":".join(filter(None, (advised.get(_TUNABLES), "glibc.malloc.hugetlb=1")))
    return advised


def mimalloc_library() -> str | None:
    """Return the path of mimalloc's library if its package is installed, and the dynamic linker can read the path."""
    try:
        files = metadata.files("cmeel-mimalloc") or []
    except metadata.PackageNotFoundError:
        return None
    path = next((os.path.realpath(str(file.locate())) for file in files if file.name == "libmimalloc.so"), "")
    return path if path and not {" ", ":"} & set(path) else None  # both end a name in LD_PRELOAD
