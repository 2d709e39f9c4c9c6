"""The contract on a device of PyTorch: what every backend has to do."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.torch import TorchLab
from tensorstash.testing.layouts import floats
from tests.device.chosen import FIRST


class Tagged(Tensor):
    """A subclass that no backend can know how to rebuild."""


class OnADevice(TorchLab):
    """The simulated device, which has no sparse tensors."""

    def unstashable(self) -> Mapping[str, Tensor]:
        return {
            "subclass": self.tensor(floats(4, 4)).as_subclass(Tagged),
            "without memory": torch.empty(4, 4, device="meta"),
        }


class TestTorchOnADevice(BackendSuite):
    lab = OnADevice().on(FIRST)
