"""No gradient depends on when a device comes to its work, when copies end, and when workers are done.

Run ``TENSORSTASH_SCHEDULES=2000`` for the long search; a failure names its seed, and ``TENSORSTASH_SCHEDULES_FROM``
starts there.
"""

import os
from functools import cache
from pathlib import Path

import pytest
import torch
from delays import NBYTES, Dice, delays
from inside import settle
from torch import Tensor, nn

import tensorstash as ts
from tensorstash.policies.plan import HookPolicy
from tests.device.chosen import FIRST
from tests.device.models import MODELS, gradients, made
from tests.device.simulated import Simulated

RUNS = int(os.environ.get("TENSORSTASH_SCHEDULES", "4"))
FIRST_SEED = int(os.environ.get("TENSORSTASH_SCHEDULES_FROM", "0"))


@cache
def plain(name: str) -> tuple[nn.Module, Tensor, list[bytes]]:
    model, x = made(name)
    return model, x, gradients(model, x, steps=2)


def policy(dice: Dice, folder: Path) -> HookPolicy:
    return dice.choice(
        [
            ts.CpuOffload(),
            ts.Compress(min_ratio=1),
            ts.DiskSpill(folder),
            ts.CpuOffload() | ts.Compress(min_ratio=1),
            ts.Compress(min_ratio=1) | ts.DiskSpill(folder),
        ]
    )


@pytest.mark.filterwarnings("ignore:no more than .* of host memory:RuntimeWarning")  # tensors stay on the device then
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_without_hooks_and_no_byte_is_left(name: str, device: Simulated, tmp_path: Path) -> None:
    model, x, expected = plain(name)
    torch.accelerator.synchronize(FIRST)
    before, pinned = device.live(), device.pinned()
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        dice = Dice(seed)
        device.delays(dice.choice([0.0, 0.0002, 0.001, 0.003]), seed)
        device.link(bandwidth=dice.choice([0.0, 1e7, 1e9]), latency=dice.choice([0.0, 0.0005]))
        limits = ts.Limits(
            in_flight=dice.choice(NBYTES),
            ahead=dice.choice(NBYTES),
            pinned=dice.choice([0, "1MiB", "1GiB"]),
            writers=dice.choice([1, 2]),
            readers=dice.choice([1, 2]),
        )
        chosen = policy(dice, tmp_path)
        stash = ts.stash(chosen, framework="torch", min_bytes=dice.choice([0, 300]), limits=limits)
        with delays(dice):
            got = gradients(model, x, lambda stash=stash: stash, steps=2)
        assert got == expected, f"seed {seed}: {chosen!r}"
        assert stash.stats().stashed.tensors
        settle(stash)  # a thread that is at a tensor holds it
        del stash
        torch.accelerator.synchronize(FIRST)
        assert (device.live(), device.pinned()) == (before, pinned), f"seed {seed}: bytes are left"
