"""A copy that lacks its order with the computation shows wrong bytes on a device of PyTorch.

Every order is proved by interleavings of simulated streams; here some of the same faults prove the simulated device.
"""

import os
from collections.abc import Callable

import pytest
import torch
from delays import Dice
from order_faults import (
    BufferFromThePoolOfTheCopyStream,
    CopyOutBeforeTheSourceIsWritten,
    HostMemoryReusedBeforeItsCopyEnded,
    HostReadsBeforeTheCopyEnded,
    ReloadIntoMemoryThatIsStillUsed,
    SourceOfAnotherStreamReused,
    SourceReusedBeforeItsCopyEnded,
    TensorHandedOutBeforeItArrived,
)

import tensorstash as ts
from tensorstash.policies.plan import HookPolicy
from tests.device import orders
from tests.device.chosen import FIRST
from tests.device.orders import Program, session
from tests.device.simulated import Simulated

MOST_TRIES = int(os.environ.get("TENSORSTASH_GUARD_TRIES", "1000"))

OFFLOAD = ts.CpuOffload

FAULTS: list[tuple[type, Program, Callable[[], HookPolicy]]] = [
    (CopyOutBeforeTheSourceIsWritten, orders.square, OFFLOAD),
    (SourceReusedBeforeItsCopyEnded, orders.trained, OFFLOAD),
    (SourceOfAnotherStreamReused, orders.aside, OFFLOAD),
    (ReloadIntoMemoryThatIsStillUsed, orders.trained, OFFLOAD),
    (BufferFromThePoolOfTheCopyStream, orders.trained, OFFLOAD),
    (TensorHandedOutBeforeItArrived, orders.trained, OFFLOAD),
    (HostMemoryReusedBeforeItsCopyEnded, orders.deep, ts.Compress),
    (HostReadsBeforeTheCopyEnded, orders.deep, ts.Compress),
]


@pytest.mark.parametrize(("fault", "program", "policy"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_guard_that_is_gone_is_noticed(
    fault: type, program: Program, policy: Callable[[], HookPolicy], device: Simulated
) -> None:
    assert not any(differs(seed, program, policy(), device) for seed in range(3))
    assert any(differs(seed, program, policy(), device, fault) for seed in range(MOST_TRIES))


def differs(seed: int, program: Program, policy: HookPolicy, device: Simulated, fault: type | None = None) -> bool:
    """Whether a schedule gives other bytes than a device that does everything at once."""
    device.delays(0.0)
    device.link()
    expected = program(Dice(seed), session(policy, ts.Limits(in_flight=0, ahead=0)).scope)
    dice = Dice(seed)
    device.delays(dice.choice([0.0002, 0.001, 0.003]), seed)
    device.link(bandwidth=dice.choice([1e6, 1e7]))
    limits = ts.Limits(in_flight=dice.choice([0, 10_000, 20_000]), ahead=dice.choice([0, 8_000]))
    got = program(Dice(seed), session(policy, limits, fault).scope)
    torch.accelerator.synchronize(FIRST)
    return got != expected
