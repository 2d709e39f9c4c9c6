"""What a benchmark asks of any accelerator of PyTorch: memory, the end of its work, and its log of copies and work."""

import gc
import json
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.runner import interleave, seconds

WAYS = {"DtoH": "out", "HtoD": "back"}

Copies = dict[str, dict[str, float]]
"""For each direction: bytes, seconds, and how many of those seconds the device was computing, too."""


@dataclass(frozen=True)
class Accelerator:
    """A device of PyTorch, or the host, which has nothing to ask."""

    device: torch.device
    name: str
    module: Any = None  # what PyTorch offers for its type; None for the host

    def synchronize(self) -> None:
        """Wait for the end of its work."""
        if self.module is not None:
            torch.accelerator.synchronize(self.device)

    def clear(self) -> None:
        """Give up what nobody needs, and what its allocator keeps for later."""
        gc.collect()
        if hasattr(self.module, "empty_cache"):
            self.module.empty_cache()

    def timed(self, call: Callable[[], object]) -> tuple[float, int]:
        """Return the seconds that a call takes, and the most bytes in use above those before; 0 where none counts."""
        self.synchronize()
        is_counted = hasattr(self.module, "max_memory_allocated")
        if is_counted:
            self.module.reset_peak_memory_stats()
        before = int(self.module.memory_allocated()) if is_counted else 0
        spent = seconds(lambda: (call(), self.synchronize()))
        return spent, int(self.module.max_memory_allocated()) - before if is_counted else 0

    def pinned_peak(self) -> int:
        """Return the most page-locked bytes of PyTorch's own pool since the last call, 0 where they cannot be had."""
        if self.device.type != "cuda":
            return 0
        peak = int(torch.cuda.host_memory_stats()["active_bytes.peak"])
        torch.cuda.reset_peak_host_memory_stats()
        return peak

    def copies(self, run: Callable[[], object]) -> Copies:
        """Return what a run copies in each direction, from a profile if there is one."""
        return _profiled(lambda: (run(), self.synchronize())) if self.device.type == "cuda" else {}


def beside(spans: Iterable[Sequence[float]], others: Iterable[Sequence[float]]) -> float:
    """Return for how many seconds of the spans there was one of the others, too, which may overlap.

    >>> beside([(0, 4), (3, 5)], [(1, 2), (1.5, 3.5)])
    3.0
    """
    merged: list[list[float]] = []
    for begun, ended in sorted(others):
        if merged and begun <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], ended)
        else:
            merged.append([begun, ended])
    both = ((max(begun, first), min(ended, last)) for begun, ended in spans for first, last in merged)
    return sum((max(ended - begun, 0.0) for begun, ended in both), 0.0)


def _profiled(run: Callable[[], object]) -> Copies:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]

    def found(category: str, name: str = "") -> list[tuple[float, float, int]]:
        some = (event for event in events if event.get("cat") == category and name in event["name"])
        return [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"].get("bytes", 0)) for e in some]

    return _totals({way: found("gpu_memcpy", way) for way in WAYS}, [span for *span, _ in found("kernel")])


def _totals(copies: Mapping[str, Sequence[tuple[float, float, int]]], work: Iterable[Sequence[float]]) -> Copies:
    return {
        way: {
            "nbytes": float(sum(nbytes for *_, nbytes in some)),
            "seconds": sum(ended - begun for begun, ended, _ in some),
            "beside": beside([span for *span, _ in some], work),
        }
        for way, some in copies.items()
    }


def bare_seconds(accelerator: Accelerator, nbytes: int) -> dict[str, float]:
    """Return seconds per byte of the best of five copies between page-locked memory and the device."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=accelerator.module is not None)
    there = torch.empty(nbytes, dtype=torch.uint8, device=accelerator.device)

    def copy(target: Tensor, source: Tensor) -> float:
        return seconds(lambda: (target.copy_(source, non_blocking=True), accelerator.synchronize()))

    times = interleave({"DtoH": partial(copy, host, there), "HtoD": partial(copy, there, host)}, 6)
    return {way: min(some[1:]) / nbytes for way, some in times.items()}


def accelerator_named(name: str) -> Accelerator:
    """Return a device by PyTorch's name, or end the program."""
    if name == "sim":  # registers itself
        import_module("tests.device.simulated").simulated()
    device = torch.device(name)
    if device.type == "cpu":
        return Accelerator(device, platform.machine())
    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type != device.type:
        raise SystemExit(f"no {device.type} device; --device cpu runs anywhere")
    module = torch.get_device_module(device)
    return Accelerator(device, module.get_device_name(device) if hasattr(module, "get_device_name") else name, module)
