"""Each order between a copy and the computation is needed: without it the device shows wrong bytes.

The orders themselves are proved by interleavings of simulated streams; here the faults that are planted there meet a
device of PyTorch.
"""

import os
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from delays import Dice
from test_interleavings import (
    CopyOutBeforeTheSourceIsWritten,
    HostReadsBeforeTheCopyEnded,
    ReloadIntoMemoryThatIsStillUsed,
    SourceReusedBeforeItsCopyEnded,
    TensorHandedOutBeforeItArrived,
)
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.engine import session
from tensorstash.engine.transfers import Transfers
from tests.device.models import made
from tests.device.simulated import Simulated

MOST_TRIES = int(os.environ.get("TENSORSTASH_GUARD_TRIES", "300"))


class Late(torch.autograd.Function):
    """Saves what the device has not written yet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


class Square(nn.Module):
    """Its gradient is what :class:`Late` has saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1000))

    def forward(self, x: Tensor) -> Tensor:
        return Late.apply(self.scale * x)


FAULTS = [
    (CopyOutBeforeTheSourceIsWritten, "late", ts.CpuOffload()),
    (SourceReusedBeforeItsCopyEnded, "images", ts.CpuOffload()),
    (ReloadIntoMemoryThatIsStillUsed, "images", ts.CpuOffload()),
    (TensorHandedOutBeforeItArrived, "images", ts.CpuOffload()),
    (HostReadsBeforeTheCopyEnded, "images", ts.Compress()),
]


def trained(model: nn.Module, x: Tensor, scope: Any) -> list[bytes]:
    """Return the bits of the gradients of two steps."""
    found = []
    for _ in range(2):
        with scope():
            out = model(x)
        out.sum().backward()
        found += [parameter.grad.cpu().numpy().tobytes() for parameter in model.parameters()]
        model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(("fault", "name", "policy"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_guard_that_is_gone_is_noticed(
    fault: type, name: str, policy: Any, device: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = (Square().to("sim"), torch.rand(1000).to("sim")) if name == "late" else made(name)
    expected = trained(model, x, nullcontext)
    for transfers, tries, is_noticed in ((Transfers, 5, False), (fault, MOST_TRIES, True)):
        monkeypatch.setattr(session, "Transfers", transfers)
        assert any(differs(seed, model, x, policy, device, expected) for seed in range(tries)) == is_noticed


def differs(seed: int, model: nn.Module, x: Tensor, policy: Any, device: Simulated, expected: list[bytes]) -> bool:
    """Whether a schedule gives other gradients."""
    dice = Dice(seed)
    device.delays(dice.choice([0.0002, 0.001, 0.003]), seed)
    device.link(bandwidth=dice.choice([1e6, 1e7]))
    limits = ts.Limits(in_flight=dice.choice([0, 10_000, 20_000]), ahead=dice.choice([0, 20_000]))
    stash = ts.stash(policy, framework="torch", min_bytes=0, limits=limits)
    return trained(model, x, lambda: stash) != expected
