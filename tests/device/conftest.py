"""Where the device is simulated, it is registered before anything else; elsewhere its tests are not collected."""

import os
from collections.abc import Iterator

import pytest

INNER = os.environ.get("TENSORSTASH_TEST_DEVICE") == "sim"

collect_ignore = [] if INNER else ["on_device"]

if INNER:
    import torch

    from tests.device.simulated import Simulated, simulated

    simulated()

    @pytest.fixture
    def device() -> Iterator[Simulated]:
        """Return what is set and read of the device, which is as it was afterwards."""
        torch.accelerator.synchronize("sim:0")
        torch.accelerator.synchronize("sim:1")
        found = simulated()
        found.records()
        yield found
        found.delays(0.0)
        found.link()
        found.memory()
