"""Peak memory and duration of the steps of this process."""

import ctypes
import gc
import os
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self

_CLEAR_REFS = Path("/proc/self/clear_refs")

RESETS = os.access(_CLEAR_REFS, os.W_OK)
"""Whether the peak can start anew. Where it cannot, it is the peak since the process began."""


def reset_peak() -> None:
    """Let the peak of resident memory start anew, where the system can."""
    if RESETS:
        _CLEAR_REFS.write_text("5")


def peak_bytes() -> int:
    """Return the largest resident size since the last reset, in bytes; POSIX only."""
    if RESETS:
        status = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
        self.floor_bytes = self.peak_bytes = peak_bytes()
        self.step_s: list[float] = []
        self.cpu_s: list[float] = []
        self._started = self._cpu_started = 0.0

    @property
    def activation_bytes(self) -> int:
        """The peak so far above the floor."""
        return self.peak_bytes - self.floor_bytes

    def begin(self) -> None:
        """Begin a step."""
        self.step_s.append(0.0)
        self.cpu_s.append(0.0)

    def __enter__(self) -> Self:
        reset_peak()
        self._started, self._cpu_started = perf_counter(), process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.step_s[-1] += perf_counter() - self._started
        self.cpu_s[-1] += process_time() - self._cpu_started
        self.peak_bytes = max(self.peak_bytes, peak_bytes())

    def report(self) -> dict[str, Any]:
        """Return everything by name, in plain values."""
        return {name: getattr(self, name) for name in ("floor_bytes", "activation_bytes", "step_s", "cpu_s")}
