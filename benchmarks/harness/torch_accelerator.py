"""What a benchmark asks of any accelerator of PyTorch: memory, the end of its work, and its log of copies and work.

The simulated device of the tests is one: ``sim``. It is built where a C++ compiler is.
"""

import json
import platform
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.runner import interleave, seconds

WAYS = ("DtoH", "HtoD")
COMPUTED, WAITED = 2, 3

Copies = dict[str, dict[str, float]]
"""For each direction: bytes, seconds, and how many of those seconds the device was computing, too. A simulated device
also tells under ``"waited"`` for how many seconds the streams that compute waited for others."""

Span = tuple[float, float]
"""When something began and when it ended, in seconds."""


@dataclass(frozen=True)
class Accelerator:
    """A device of PyTorch, or the host, which has nothing to ask.

    Args:
        device: which.
        name: what it is called.
        module: what PyTorch offers for its type; None for the host.
        log: of a simulated device: what takes its records, and what lets it have computations; None elsewhere.
    """

    device: torch.device
    name: str
    module: Any = None
    log: Any = None

    @property
    def has_pinned_memory(self) -> bool:
        """Whether it copies page-locked memory on its own."""
        return self.module is not None

    def synchronize(self) -> None:
        """Wait for the end of its work."""
        if self.module is not None:
            torch.accelerator.synchronize(self.device)

    def clear(self) -> None:
        """Give up what its allocator keeps for later."""
        if hasattr(self.module, "empty_cache"):
            self.module.empty_cache()

    def reset_peak(self) -> int:
        """Begin to measure the peak anew; return the bytes in use, 0 where they cannot be had."""
        if not hasattr(self.module, "max_memory_allocated"):
            return 0
        self.module.reset_peak_memory_stats()
        return int(self.module.memory_allocated())

    def peak(self) -> int:
        """Return the most bytes in use since :meth:`reset_peak`, 0 where they cannot be had."""
        return int(self.module.max_memory_allocated()) if hasattr(self.module, "max_memory_allocated") else 0

    def reset_pinned(self) -> None:
        """Begin anew with the peak of PyTorch's own page-locked memory."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_host_memory_stats()

    def pinned_peak(self) -> int:
        """Return the most page-locked bytes of PyTorch's own pool, 0 where they cannot be had."""
        return int(torch.cuda.host_memory_stats()["active_bytes.peak"]) if self.device.type == "cuda" else 0

    def copies(self, run: Callable[[], object]) -> Copies:
        """Return what a run copies in each direction, from a profile or the device's log if there is one."""
        if self.log is not None:
            return _logged(run, self.synchronize, self.log)
        return _profiled(run, self.synchronize) if self.device.type == "cuda" else {}


def beside(spans: Iterable[Span], others: Iterable[Span]) -> float:
    """Return for how many seconds of the spans there was one of the others, too.

    Args:
        spans: each counts on its own.
        others: which may overlap.

    >>> beside([(0, 4), (3, 5)], [(1, 2), (1.5, 3.5)])
    3.0
    """
    merged: list[list[float]] = []
    for begun, ended in sorted(others):
        if merged and begun <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], ended)
        else:
            merged.append([begun, ended])
    ends = [ended for _, ended in merged]
    total = 0.0
    for begun, ended in spans:
        for start, stop in merged[bisect_right(ends, begun) :]:
            if start >= ended:
                break
            total += min(stop, ended) - max(start, begun)
    return total


def _totals(copies: dict[str, list[tuple[Span, int]]], work: list[Span]) -> Copies:
    return {
        way: {
            "nbytes": float(sum(nbytes for _, nbytes in found)),
            "seconds": sum(ended - begun for (begun, ended), _ in found),
            "beside": beside((span for span, _ in found), work),
        }
        for way, found in copies.items()
    }


def _logged(run: Callable[[], object], synchronize: Callable[[], None], log: Any) -> Copies:
    log.records()
    with log.computations():
        run()
        synchronize()
    copies: dict[str, list[tuple[Span, int]]] = {way: [] for way in WAYS}
    work: list[Span] = []
    waits: list[tuple[int, float]] = []
    computing: set[int] = set()
    for record in log.records():
        span = record.begun, record.ended
        if record.direction == COMPUTED:
            work.append(span)
            computing.add(record.stream)
        elif record.direction == WAITED:
            waits.append((record.stream, record.ended - record.begun))
        else:
            copies[WAYS[record.direction]].append((span, record.nbytes))
    waited = sum(spent for stream, spent in waits if stream in computing)
    return {**_totals(copies, work), "waited": {"seconds": waited}}


def _profiled(run: Callable[[], object], synchronize: Callable[[], None]) -> Copies:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    copies: dict[str, list[tuple[Span, int]]] = {way: [] for way in WAYS}
    work: list[Span] = []
    for event in events:
        way = next((way for way in WAYS if way in event.get("name", "")), None)
        if event.get("cat") == "gpu_memcpy" and way:
            copies[way].append((_span(event), event["args"]["bytes"]))
        elif event.get("cat") == "kernel":
            work.append(_span(event))
    return _totals(copies, work)


def _span(event: dict[str, Any]) -> Span:
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6


def bare_seconds(accelerator: Accelerator, nbytes: int) -> dict[str, float]:
    """Return seconds per byte of the best of five copies between page-locked memory and the device."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=accelerator.has_pinned_memory)
    there = torch.empty(nbytes, dtype=torch.uint8, device=accelerator.device)

    def copy(target: Tensor, source: Tensor) -> float:
        return seconds(lambda: (target.copy_(source, non_blocking=True), accelerator.synchronize()))

    times = interleave({"DtoH": partial(copy, host, there), "HtoD": partial(copy, there, host)}, 6)
    return {way: min(some[1:]) / nbytes for way, some in times.items()}


def accelerator_named(name: str, *, bandwidth: float = 0.0, memory: float = 0.0) -> Accelerator:
    """Return a device.

    Args:
        name: as PyTorch writes it; ``sim`` registers the simulated one.
        bandwidth: of the links of the simulated one, in bytes per second; 0 for no limit.
        memory: the same of its memory; with 0 its operations take as long as the processor needs.

    Raises:
        SystemExit: there is none of that name.
    """
    if name.partition(":")[0] == "sim":
        from tests.device.simulated import simulated

        device = simulated()
        device.link(bandwidth=bandwidth)
        device.memory(bandwidth=memory)
        return Accelerator(torch.device(name), "simulated device", torch.sim, device)  # type: ignore[attr-defined]
    device = torch.device(name)
    if device.type == "cpu":
        return Accelerator(device, platform.machine())
    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type != device.type:
        found = "none" if here is None else here.type
        raise SystemExit(
            f"no {device.type} device, accelerators here: {found}; --device cpu and --device sim run anywhere"
        )
    module = torch.get_device_module(device)
    return Accelerator(device, module.get_device_name(device) if hasattr(module, "get_device_name") else name, module)
