"""A device of PyTorch that is simulated: built once, registered as ``sim``, and what tests set and read of it.

One process has one accelerator, and autograd counts devices once: so it is registered before anything else, in
processes that run nothing but its tests.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.device.kernels import put_kernels

NAME = "sim"
DEVICES = 2
SOURCE = Path(__file__).with_name("device.cpp")
PARTS = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
TO_HOST, TO_DEVICE, COMPUTED, WAITED = range(4)

FLAGS = ("-std=c++20", "-O0", "-w", "-shared", "-fPIC", "-DAT_PER_OPERATOR_HEADERS")


def compiler() -> str | None:
    """Return the C++ compiler, or None if there is none."""
    return shutil.which(os.environ.get("CXX", "c++"))


def library() -> Path:
    """Return the built device; build it if its parts were never built for this PyTorch."""
    import fcntl  # absent on Windows, where the device cannot be built

    root = Path(torch.__file__).parent
    flags = (*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    key = hashlib.sha256(repr((*map(Path.read_bytes, PARTS), torch.__version__, sys.platform, flags)).encode())
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = caches / "tensorstash-tests" / f"device-{key.hexdigest()[:16]}.so"
    built.parent.mkdir(parents=True, exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first builds, and the others wait for it
        if not built.exists():
            fresh = built.with_suffix(".new")
            folders = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
            links = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]  # wherever they are: they are loaded first
            subprocess.run([compiler() or "c++", *flags, *folders, str(SOURCE), "-o", str(fresh), *links], check=True)
            fresh.replace(built)  # whole
    return built


class Record(ctypes.Structure):
    """A copy that has ended, a piece of computation, or a time that a stream waited for another; times in seconds."""

    _fields_ = (
        ("device", ctypes.c_int32),
        ("direction", ctypes.c_int32),  # one of the four above
        ("stream", ctypes.c_int64),  # 0 is the default stream
        ("nbytes", ctypes.c_int64),
        ("submitted", ctypes.c_double),
        ("begun", ctypes.c_double),  # it had the link, or went on after it had waited for operands
        ("ended", ctypes.c_double),  # or began to wait for operands
    )


@dataclass(frozen=True)
class Simulated:
    """What tests set and read of the device."""

    functions: Any

    def live(self, device: int = 0) -> int:
        """Return the bytes that are in use, those included that another stream may still use."""
        return int(self.functions.live_bytes(device))

    def peak(self, device: int = 0) -> int:
        """Return the most bytes that were in use since :meth:`reset_peak`."""
        return int(self.functions.peak_bytes(device))

    def reset_peak(self, device: int = 0) -> None:
        """Begin anew with what is in use now."""
        self.functions.reset_peak(device)

    def waits(self) -> int:
        """Return how often a thread of the program has waited for a device so far."""
        return int(self.functions.waits())

    def pinned(self) -> int:
        """Return the bytes of page-locked memory."""
        return int(self.functions.pinned_bytes())

    def contexts(self) -> list[int]:
        """Return the devices that the process has used, or that a thread had as its own when it called the system."""
        return [device for device in range(DEVICES) if self.functions.has_context(device)]

    def link(self, *, bandwidth: float = 0.0, latency: float = 0.0) -> None:
        """Set how long copies take: bytes in a second, 0 for no limit; and seconds from the last byte to the end."""
        for device in range(DEVICES):
            for direction in (TO_HOST, TO_DEVICE):
                self.functions.set_link(device, direction, bandwidth, latency)

    def memory(self, *, bandwidth: float = 0.0) -> None:
        """Set how many bytes in a second operations read and write; 0 for as long as the processor takes."""
        self.functions.set_memory(bandwidth)

    def delays(self, longest: float, seed: int = 0) -> None:
        """Let streams pause before some of what they do, for at most so many seconds."""
        self.functions.set_delays(longest, seed)

    def records(self) -> Sequence[Record]:
        """Return the log since this was last called: copies that have ended, and what :meth:`computations` adds."""
        found = (Record * self.functions.count_records())()
        self.functions.take_records(found, ctypes.c_int64(len(found)))
        return list(found)

    @contextmanager
    def computations(self) -> Iterator[None]:
        """Let the log have the pieces of computation, too, which are many."""
        self.functions.set_computations(True)
        try:
            yield
        finally:
            self.functions.set_computations(False)

    @contextmanager
    def limited(self, nbytes: int, device: int = 0) -> Iterator[None]:
        """Let a device have no more memory than that."""
        self.functions.set_limit(device, nbytes)
        try:
            yield
        finally:
            self.functions.set_limit(device, 0)


@cache
def simulated() -> Simulated:
    """Register the device with PyTorch, once in a process, and return what is set and read of it."""
    path = str(library())
    torch.ops.load_library(path)
    torch.utils.rename_privateuse1_backend(NAME)
    functions = ctypes.CDLL(path)
    torch._register_device_module(NAME, _module(Simulated(functions)))
    torch.utils.generate_methods_for_privateuse1_backend()
    put_kernels(NAME)
    for name in ("live_bytes", "peak_bytes", "pinned_bytes", "count_records", "waits"):
        getattr(functions, name).restype = ctypes.c_int64
    functions.has_context.restype = ctypes.c_bool
    functions.set_limit.argtypes = [ctypes.c_int, ctypes.c_int64]
    functions.set_link.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_double]
    functions.set_memory.argtypes = [ctypes.c_double]
    functions.set_delays.argtypes = [ctypes.c_double, ctypes.c_uint]
    functions.set_computations.argtypes = [ctypes.c_bool]
    return Simulated(functions)


def _module(device: Simulated) -> ModuleType:
    """Return what PyTorch asks a device of another maker for; random numbers are those of the CPU."""
    module: Any = ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: DEVICES
    module.current_device = torch.accelerator.current_device_index
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module._is_in_bad_fork = lambda: False
    module.memory_allocated, module.max_memory_allocated = device.live, device.peak
    module.reset_peak_memory_stats = device.reset_peak
    return module
