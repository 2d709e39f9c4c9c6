"""The device that the tests of this folder run on: the simulated one, or an accelerator that the machine has.

TENSORSTASH_TEST_DEVICE=cuda python -m pytest tests/device/on_device
"""

import os
from functools import cache
from typing import Any

import pytest
import torch

from tests.device.simulated import NAME, Simulated, simulated

KIND = os.environ.get("TENSORSTASH_TEST_DEVICE", NAME)
FIRST = f"{KIND}:0"


class Card:
    """A real device in the place of the simulated one: tests that set its link, delays or limits are skipped."""

    def __init__(self) -> None:
        module: Any = getattr(torch, KIND)
        self.live, self.peak = module.memory_allocated, module.max_memory_allocated
        self.reset_peak = module.reset_peak_memory_stats

    def __getattr__(self, name: str) -> Any:
        getattr(Simulated, name)  # a name that neither has is a mistake
        pytest.skip(f"{name} is of the simulated device alone")


@cache
def chosen() -> Simulated | Card:
    """Return what is set and read of the device; the simulated one is registered with PyTorch."""
    return simulated() if KIND == NAME else Card()


@cache
def devices() -> list[str]:
    """Return the first two devices.

    Raises:
        pytest.skip.Exception: there is one alone.
    """
    if torch.accelerator.device_count() < 2:
        pytest.skip("the machine has one device")
    return [f"{KIND}:{index}" for index in range(2)]
