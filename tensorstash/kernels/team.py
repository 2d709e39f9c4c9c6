"""The threads that a framework computes with, lent to compiled code for as long as it waits for that."""

import ctypes
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tensorstash.host import native


class Team:
    """Lets what compiled kernels do on this thread be shared out among the framework's own threads. Thread-safe.

    Inside of a ``with`` block every large call of a compiled kernel runs on as many threads as an operation of the
    framework does. These are idle then, or spin in wait for the next operation, and begin at once, while threads of our
    own would first have to get a core from one that spins. Results do not depend on the number of threads. In a forked
    child, which has no such threads, and wherever the framework's library is none of OpenMP, everything runs on the
    calling thread.

    Args:
        threads: returns how many threads an operation of the framework runs on, asked on the thread that calls it.
        library: path of the library that operations are in; None where that is not known.

    >>> with Team(lambda: 1) as team:
    ...     team.threads()
    1
    """

    __slots__ = ("_address", "_join", "_leave", "threads")

    def __init__(self, threads: Callable[[], int], library: str | None = None) -> None:
        self.threads = threads
        self._address = 0 if native.functions is None else _parallel(library)
        if native.functions is not None:
            self._join, self._leave = native.functions.join_team, native.functions.leave_team

    @property
    def helps(self) -> bool:
        """Whether it has more threads than the calling one."""
        return self._address != 0 and self.threads() > 1

    def __enter__(self) -> "Team":
        if self._address:
            self._join(self._address, self.threads())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._address:
            self._leave()


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def openmp_function(library: str | None, name: str) -> Any:
    """Return a function of the OpenMP library that a library uses; None if it uses none, or is not loaded.

    It is that of the whole process where there is one, as a library that was preloaded is; else the one that the
    system has found for the library.

    Args:
        library: path.
        name: of the function.
    """
    if library is None or sys.platform == "win32":
        return None
    try:
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None
    return getattr(ctypes.CDLL(None), name, None) or getattr(loaded, name, None)


def _parallel(library: str | None) -> int:
    """Return the address of what shares out work; every OpenMP library on Linux has it, for what GCC compiles."""
    found = openmp_function(library, "GOMP_parallel")
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0
