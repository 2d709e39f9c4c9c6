"""Where the device is chosen, it is registered before anything else; elsewhere its tests are not collected."""

import os
from collections.abc import Iterator

import pytest

INNER = "TENSORSTASH_TEST_DEVICE" in os.environ

collect_ignore = [] if INNER else ["on_device"]

if INNER:
    import torch

    from tests.device.chosen import Card, chosen
    from tests.device.simulated import Simulated

    chosen()

    @pytest.fixture
    def device() -> Iterator[Simulated | Card]:
        """Return what is set and read of the device, which is as it was afterwards."""
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(index)
        found = chosen()
        if isinstance(found, Simulated):
            found.records()
        yield found
        if isinstance(found, Simulated):
            found.delays(0.0)
            found.link()
            found.memory()
