"""Each order between a copy and the computation is needed: without it the device shows wrong bytes.

The orders themselves are proved by interleavings of simulated streams; here the same faults meet a device of PyTorch.
"""

import os
from collections.abc import Callable

import pytest
import torch
from delays import Dice
from order_faults import (
    ArrivalDroppedUnderItsCopy,
    BufferFromThePoolOfTheCopyStream,
    CopyOutBeforeTheSourceIsWritten,
    HostMemoryReusedBeforeItsCopyEnded,
    HostReadsBeforeTheCopyEnded,
    PayloadOnDeviceReusedByItsOwnStream,
    ReloadIntoMemoryThatIsStillUsed,
    ReloadOvertakesItsOwnOffload,
    SourceOfAnotherStreamReused,
    SourceReadOnAnotherStreamReused,
    SourceReusedBeforeItsCopyEnded,
    StaleComputeStream,
    TensorHandedOutBeforeItArrived,
    TensorHandedToAnotherStream,
    ViewPackedOnTheCopyStream,
)

import tensorstash as ts
from tensorstash.policies.plan import HookPolicy
from tests.device import orders
from tests.device.orders import Program, session
from tests.device.simulated import Simulated

MOST_TRIES = int(os.environ.get("TENSORSTASH_GUARD_TRIES", "1000"))

OFFLOAD, ON_DEVICE = ts.CpuOffload, lambda: ts.Quantize(bits=8)

FAULTS: list[tuple[type, Program, Callable[[], HookPolicy]]] = [
    (CopyOutBeforeTheSourceIsWritten, orders.square, OFFLOAD),
    (SourceReusedBeforeItsCopyEnded, orders.trained, OFFLOAD),
    (SourceOfAnotherStreamReused, orders.aside, OFFLOAD),
    (SourceReadOnAnotherStreamReused, orders.lent_aside, OFFLOAD),
    (ReloadIntoMemoryThatIsStillUsed, orders.trained, OFFLOAD),
    (ReloadOvertakesItsOwnOffload, orders.prefetched, OFFLOAD),
    (BufferFromThePoolOfTheCopyStream, orders.trained, OFFLOAD),
    (TensorHandedOutBeforeItArrived, orders.trained, OFFLOAD),
    (ArrivalDroppedUnderItsCopy, orders.dropped, OFFLOAD),
    (TensorHandedToAnotherStream, orders.handed_over, OFFLOAD),
    (StaleComputeStream, orders.in_turn, OFFLOAD),
    (HostMemoryReusedBeforeItsCopyEnded, orders.deep, ts.Compress),
    (ViewPackedOnTheCopyStream, orders.views, OFFLOAD),
    (HostReadsBeforeTheCopyEnded, orders.deep, ts.Compress),
    (PayloadOnDeviceReusedByItsOwnStream, orders.stays_aside, ON_DEVICE),
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
    torch.accelerator.synchronize("sim:0")
    return got != expected
