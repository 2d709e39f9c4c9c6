"""What a benchmark asks of any accelerator of PyTorch: its memory, and the end of its work."""

import gc
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from benchmarks.harness.runner import seconds


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
