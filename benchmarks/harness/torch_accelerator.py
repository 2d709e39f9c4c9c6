"""What a benchmark asks of any accelerator of PyTorch: memory, the end of its work, and the copies that it did.

The simulated device of the tests is one: ``sim``. It is built where a C++ compiler is.
"""

import json
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WAYS = ("DtoH", "HtoD")

Copies = dict[str, dict[str, float]]
"""Bytes and seconds in each direction."""


@dataclass(frozen=True)
class Accelerator:
    """A device of PyTorch, or the host, which has nothing to ask.

    Args:
        device: which.
        name: what it is called.
        module: what PyTorch offers for its type; None for the host.
        take_records: returns the copies that a simulated device has done since it was last called; None elsewhere.
    """

    device: torch.device
    name: str
    module: Any = None
    take_records: Callable[[], Any] | None = None

    @property
    def has_pinned_memory(self) -> bool:
        """Whether it copies page-locked memory on its own."""
        return self.module is not None

    @property
    def is_cuda(self) -> bool:
        """Whether CUDA's own profiler and statistics are there."""
        return self.device.type == "cuda"

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
        if self.is_cuda:
            torch.cuda.reset_peak_host_memory_stats()

    def pinned_peak(self) -> int:
        """Return the most page-locked bytes of PyTorch's own pool, 0 where they cannot be had."""
        return int(torch.cuda.host_memory_stats()["active_bytes.peak"]) if self.is_cuda else 0

    def copies(self, run: Callable[[], object]) -> Copies:
        """Return what a run copies in each direction, from a profile or the device's log if there is one."""
        if self.take_records is not None:
            self.take_records()
            run()
            self.synchronize()
            return _logged(self.take_records())
        return _profiled(run, self.synchronize) if self.is_cuda else {}


def _logged(records: Any) -> Copies:
    totals = {way: {"nbytes": 0.0, "seconds": 0.0} for way in WAYS}
    for record in records:
        totals[WAYS[record.direction]]["nbytes"] += record.nbytes
        totals[WAYS[record.direction]]["seconds"] += record.ended - record.begun
    return totals


def _profiled(run: Callable[[], object], synchronize: Callable[[], None]) -> Copies:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    totals = {way: {"nbytes": 0.0, "seconds": 0.0} for way in WAYS}
    for event in events:
        way = next((way for way in totals if way in event.get("name", "")), None)
        if event.get("cat") == "gpu_memcpy" and way:
            totals[way]["nbytes"] += event["args"]["bytes"]
            totals[way]["seconds"] += event["dur"] / 1e6
    return totals


def accelerator_named(name: str, *, bandwidth: float = 0.0) -> Accelerator:
    """Return a device.

    Args:
        name: as PyTorch writes it; ``sim`` registers the simulated one.
        bandwidth: of the links of the simulated one, in bytes per second; 0 for no limit.

    Raises:
        SystemExit: there is none of that name.
    """
    if name.partition(":")[0] == "sim":
        from tests.device.simulated import simulated

        device = simulated()
        device.link(bandwidth=bandwidth)
        return Accelerator(torch.device(name), "simulated device", torch.sim, device.records)  # type: ignore[attr-defined]
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
