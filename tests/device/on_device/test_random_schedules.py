"""No gradient depends on when a device comes to its work, when copies end, and when workers are done.

``TENSORSTASH_SCHEDULES=2000`` is the long search; a failure names its seed, for ``TENSORSTASH_SCHEDULES_FROM``.
"""

import os
from pathlib import Path
from zlib import crc32

import pytest
import torch
from delays import NBYTES, Dice, delays
from inside import settle

import tensorstash as ts
from tests.device.chosen import FIRST, Card
from tests.device.models import MODELS, POLICIES, gradients, made
from tests.device.simulated import Simulated

RUNS = int(os.environ.get("TENSORSTASH_SCHEDULES", "1"))
FIRST_SEED = int(os.environ.get("TENSORSTASH_SCHEDULES_FROM", "0"))


def held(device: Simulated | Card) -> tuple[int, ...]:
    return (device.live(), device.pinned()) if isinstance(device, Simulated) else ()


@pytest.mark.filterwarnings("ignore:no more than .* of host memory:RuntimeWarning")  # tensors stay on the device then
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_without_hooks_and_no_byte_is_left(
    name: str, policy: str, device: Simulated | Card, tmp_path: Path
) -> None:
    model, x = made(name)
    expected = gradients(model, x, steps=2)
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        dice = Dice(crc32(f"{name} {policy} {seed}".encode()))
        torch.accelerator.synchronize(FIRST)
        before = held(device)
        if isinstance(device, Simulated):
            device.delays(dice.choice([0.0, 0.0002, 0.001, 0.003]), seed)
            device.link(bandwidth=dice.choice([0.0, 1e7, 1e9]), latency=dice.choice([0.0, 0.0005]))
        nbytes = {name: dice.choice(["auto", *NBYTES]) for name in ("in_flight", "ahead")}
        pinned = dice.choice([0, "1MiB", "1GiB"])
        limits = ts.Limits(**nbytes, pinned=pinned, writers=dice.choice([1, 2]), readers=dice.choice([1, 2]))
        min_bytes = dice.choice([0, 300])
        stash = ts.stash(POLICIES[policy](tmp_path), framework="torch", min_bytes=min_bytes, limits=limits)
        with delays(dice):
            got = gradients(model, x, lambda stash=stash: stash, steps=2)
        assert got == expected, f"seed {seed}"
        settle(stash)  # a thread that is at a tensor holds it
        stats = stash.stats()
        assert stats.stashed.tensors
        assert not stats.live.tensors
        assert not stats.waits
        del stash
        torch.accelerator.synchronize(FIRST)
        assert held(device) == before, f"seed {seed}: bytes are left"
