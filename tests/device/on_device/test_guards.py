"""A copy that lacks its order with the computation shows wrong bytes on a device of PyTorch.

Every order is proved by interleavings of simulated streams; here some of the same faults prove the simulated device.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import order_faults as lacks
import pytest
import torch
from delays import Dice
from order_faults import BackendFault, with_copies

import tensorstash as ts
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.session import Session
from tensorstash.policies.plan import HookPolicy
from tests.device.chosen import FIRST, KIND
from tests.device.models import Scope
from tests.device.simulated import Simulated

MOST_TRIES = int(os.environ.get("TENSORSTASH_GUARD_TRIES", "1000"))
COUNT = 1000  # elements of a tensor

Program = Callable[[Dice, Scope], bytes]


def deep(dice: Dice, scope: Scope) -> bytes:
    """A step of more layers than may be brought back ahead."""
    leaf = torch.full((COUNT,), 0.5).to(KIND).requires_grad_()
    with scope():
        x = leaf
        for _ in range(12):
            x = (x * 1.1).tanh()
    torch.accelerator.current_stream().synchronize()
    x.sum().backward()
    return leaf.grad.cpu().numpy().tobytes()  # type: ignore[union-attr]


def aside(dice: Dice, scope: Scope) -> bytes:
    """Save on one stream what belongs to another, which goes on without waiting."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device=KIND)
    x = torch.full((COUNT,), dice.choice([2.0, 3.0]), device=KIND) * 1.0
    side.wait_event(main.record_event())
    with side:
        leaf = torch.ones(COUNT, device=KIND).requires_grad_()
        with scope():
            y = leaf * x
            del x
            y = y.tanh()  # and what nobody else holds any more leaves
    for _ in range(dice.choice([1, 3, 6])):
        torch.full((COUNT,), 7.0, device=KIND) * 1.0
    with side:
        y.sum().backward()
        return leaf.grad.cpu().numpy().tobytes()  # type: ignore[union-attr]


FAULTS: list[tuple[type, Program, Callable[[], HookPolicy]]] = [
    (lacks.CopyOutBeforeTheSourceIsWritten, deep, ts.CpuOffload),
    (lacks.SourceReusedBeforeItsCopyEnded, deep, ts.CpuOffload),
    (lacks.SourceOfAnotherStreamReused, aside, ts.CpuOffload),
    (lacks.ReloadIntoMemoryThatIsStillUsed, deep, ts.CpuOffload),
    (lacks.BufferFromThePoolOfTheCopyStream, deep, ts.CpuOffload),
    (lacks.TensorHandedOutBeforeItArrived, deep, ts.CpuOffload),
    (lacks.HostMemoryReusedBeforeItsCopyEnded, deep, ts.Compress),
    (lacks.HostReadsBeforeTheCopyEnded, deep, ts.Compress),
]


@pytest.mark.parametrize(("fault", "program", "policy"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_guard_that_is_gone_is_noticed(
    fault: type, program: Program, policy: Callable[[], HookPolicy], device: Simulated
) -> None:
    assert not any(differs(seed, program, policy(), device) for seed in range(3))
    assert any(differs(seed, program, policy(), device, fault) for seed in range(MOST_TRIES))


def session(policy: HookPolicy, limits: ts.Limits, fault: type | None = None) -> Session[Any]:
    """Return a session, with a fault of its transfers or its backend or none."""
    backend = TorchBackend()
    if fault is not None and issubclass(fault, BackendFault):
        fault.put(backend, cache(lambda device: backend.streams.side_stream(device, "out")))
        fault = None
    one = Session(policy, backend, min_bytes=0, limits=limits)
    return one if fault is None else with_copies(one, fault)


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
