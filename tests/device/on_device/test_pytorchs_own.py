"""PyTorch's own copies to pinned memory are right on the simulated device: a race there would hide those of others."""

from functools import partial

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from tensorstash.cli.frameworks.torch import accelerators
from tests.device.chosen import KIND, devices
from tests.device.simulated import Simulated

pinned = partial(save_on_cpu, pin_memory=True, device_type=KIND)
contiguous = partial(saved_tensors_hooks, lambda x: x.detach().contiguous().clone(), lambda packed: packed)


def gradients(scope):
    torch.manual_seed(0)
    layers = [torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)] * 3
    model = torch.nn.Sequential(*layers).to(KIND, torch.bfloat16)
    x = torch.randn(256, 64).to(KIND, torch.bfloat16)
    for _ in range(2):
        with scope():
            loss = model(x).float().square().mean()
        loss.backward()
    return [parameter.grad.cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("seed", range(4))
def test_pinned_copies_lose_layouts_and_nothing_else_whatever_is_late(device: Simulated, seed: int) -> None:
    expected = gradients(contiguous)  # on the device alone
    device.delays(0.005, seed)
    got = gradients(pinned)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_the_doctor_tells_the_rate_of_the_link_and_the_limit_of_locked_memory(device: Simulated) -> None:
    device.link(bandwidth=2**30)
    *names, link = accelerators()
    assert names == devices()
    assert float(link.partition(" MiB/s to the host")[0]) <= 1024
