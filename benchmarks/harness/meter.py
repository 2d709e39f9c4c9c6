"""Peak memory and duration of the steps of this process."""

import ctypes
import gc
import os
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self

from tensorstash.host.pages import peak_bytes

_CLEAR_REFS = Path("/proc/self/clear_refs")

RESETS = os.access(_CLEAR_REFS, os.W_OK)
"""Whether the peak can start anew. Where it cannot, it is the peak since the process began."""


def reset_peak() -> None:
    """Let the peak of resident memory start anew, where the system can."""
    if RESETS:
        _CLEAR_REFS.write_text("5")


def release_free() -> None:
    """Give free memory back to the system, where the allocator (glibc's, tcmalloc or mimalloc) can be asked to."""
    if sys.platform != "linux":
        return
    loaded = ctypes.CDLL(None)
    for name, arguments in {"malloc_trim": (0,), "MallocExtension_ReleaseFreeMemory": (), "mi_collect": (1,)}.items():
        if hasattr(loaded, name):
            getattr(loaded, name)(*arguments)


class Meter:
    """Seconds, processor seconds and peak memory of each step of this process.

    The blocks of code under the meter count, all since the last :meth:`begin` as one step. Memory in use when the meter
    is made is its floor; free memory is given back before.
    """

    def __init__(self) -> None:
        gc.collect()
        release_free()
        reset_peak()
        self._floor_bytes = self._peak_bytes = peak_bytes()
        self._step_s: list[float] = []
        self._cpu_s: list[float] = []
        self._started = self._cpu_started = 0.0

    def begin(self) -> None:
        """Begin a step."""
        self._step_s.append(0.0)
        self._cpu_s.append(0.0)

    def __enter__(self) -> Self:
        reset_peak()
        self._started, self._cpu_started = perf_counter(), process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._step_s[-1] += perf_counter() - self._started
        self._cpu_s[-1] += process_time() - self._cpu_started
        self._peak_bytes = max(self._peak_bytes, peak_bytes())

    def report(self) -> dict[str, Any]:
        """Return the peak above the floor, and seconds of each step, by name."""
        above = self._peak_bytes - self._floor_bytes
        return {"activation_bytes": above, "step_s": self._step_s, "cpu_s": self._cpu_s}
