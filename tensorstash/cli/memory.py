"""Peak resident memory of this process."""

import ctypes
import os
import sys
from pathlib import Path

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")

RESETS = os.access(_CLEAR_REFS, os.W_OK)
"""Whether the peak can start anew. Where it cannot, it is the peak since the process began."""


def reset_peak() -> None:
    """Let the peak start anew from what is resident now, where the system can."""
    if RESETS:
        _CLEAR_REFS.write_text("5")


def peak_bytes() -> int:
    """Return the largest resident size since the last reset, in bytes."""
    if RESETS:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return _peak_working_set()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _ProcessMemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of psapi.h."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("rest", ctypes.c_size_t * 7),
    )


if sys.platform == "win32":

    def _peak_working_set() -> int:
        counters = _ProcessMemoryCounters(size=ctypes.sizeof(_ProcessMemoryCounters))
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        read = kernel32.K32GetProcessMemoryInfo
        read.argtypes = (ctypes.c_void_p, ctypes.POINTER(_ProcessMemoryCounters), ctypes.c_uint32)
        if not read(kernel32.GetCurrentProcess(), counters, counters.size):
            raise ctypes.WinError(ctypes.get_last_error())
        return int(counters.peak_working_set)
