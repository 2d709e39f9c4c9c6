"""Every race class of copies beside the computation: none in any interleaving, and each found when its guard is gone.

Run ``TENSORSTASH_INTERLEAVINGS=10000 pytest tests/engine/test_interleavings.py`` for the long search.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import order_faults as lacks
import pytest
from asynchronous import asynchronous
from fake_streams import SHAPE, Host, program, scheduled, session
from gates import Gated
from order_faults import BackendFault

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.engine.session import Session
from tensorstash.engine.transfers import Transfers
from tensorstash.errors import CodecError
from tensorstash.policies import StoreIn
from tensorstash.reference import Tensor
from tensorstash.reference.storage.streams import Stream, default_stream, use_stream
from tests.samples import IS_LONG

INTERLEAVINGS = int(os.environ.get("TENSORSTASH_INTERLEAVINGS", "80" if IS_LONG else "48"))
CHUNKS = 8
MOST_TRIES = 800
SIM = "sim:0"

Scope = Callable[[], Any]
Scenario = Callable[[random.Random, Scope], list[bytes]]


def saved(choose: random.Random) -> Tensor:
    """Return what one stream makes and another uses."""
    return ref.tensor(np.arange(32, dtype=np.float32).reshape(SHAPE) + choose.randint(0, 9), device=SIM) * 1.0


def go_on(choose: random.Random) -> None:
    """Use memory that is free again at once."""
    for value in range(choose.randint(1, 6)):
        (ref.full((64,), value, "uint8", device=SIM), ref.full(SHAPE, value, device=SIM) * 2.0)


def aside(choose: random.Random, scope: Scope) -> list[bytes]:
    """Save on one stream what belongs to another, which goes on without waiting."""
    main, side, x = default_stream(SIM), Stream(SIM, "first"), saved(choose)
    side.wait_event(main.record())
    with use_stream(side):
        leaf = ref.full(SHAPE, 0.5, device=SIM, requires_grad=True)
        with scope():
            y = leaf * x
        del x
    go_on(choose)
    with use_stream(side):
        y.sum().backward()
        assert leaf.grad is not None
        return [leaf.grad.host_bits().tobytes()]


def asked_aside(choose: random.Random, scope: Scope) -> list[bytes]:
    """Ask on one stream for what another has saved, which uses the memory as soon as it is let go."""
    main, side = default_stream(SIM), Stream(SIM, "first")
    session: Session[Any]
    with scope() as session:
        x = saved(choose)
        handles = [session.pack(x), session.pack(x)]  # so that who asks first gets a copy
        del x
    side.wait_event(main.record())
    with use_stream(side):
        got = session.unpack(handles[0]) * 1.0
    handles.clear()
    go_on(choose)
    with use_stream(side):
        return [got.host_bits().tobytes()]


def prefetched(choose: random.Random, scope: Scope) -> list[bytes]:
    """Ask on one stream for what another has saved and goes on from, which it waits for only as far as that."""
    main, side = default_stream(SIM), Stream(SIM, "first")
    session: Session[Any]
    with use_stream(side), scope() as session:
        handle = session.pack(saved(choose))
        end = side.record()
        more = [session.pack(ref.full(SHAPE, value, device=SIM) * 1.0) for value in range(choose.randint(2, 6))]
    main.wait_event(end)
    got = session.unpack(handle).host_bits().tobytes()
    del more
    return [got]


def dropped_prefetch(choose: random.Random, scope: Scope) -> list[bytes]:
    """Drop tensors that were brought back ahead, and use memory at once."""
    session: Session[Any]
    with scope() as session:
        handles = [session.pack(ref.full(SHAPE, value, device=SIM) * 1.0) for value in range(choose.randint(4, 8))]
    got = session.unpack(handles.pop()).host_bits().tobytes()
    handles.clear()
    fresh = [ref.full(SHAPE, value, device=SIM) * 2.0 for value in range(choose.randint(2, 8))]
    return [got, *(tensor.host_bits().tobytes() for tensor in fresh)]


@dataclass(frozen=True)
class Setting:
    """What a seed stands for."""

    policy: Any
    limits: ts.Limits
    program_seed: int

    @classmethod
    def of(cls, seed: int, policies: list[Any]) -> Setting:
        choose = random.Random(seed)
        limits = ts.Limits(
            in_flight=choose.choice([0, 200, 500, 10**6]), ahead=choose.choice([0, 200, 500, 10**6]), timeout_s=60
        )
        return cls(choose.choice(policies), limits, choose.randint(0, 10**9))


def policies() -> list[Any]:
    return [
        ts.CpuOffload(),
        ts.CpuOffload(),
        ts.Compress(min_ratio=1),
        ts.CpuOffload() | StoreIn(Gated()),
        ts.Quantize(bits=8) | ts.CpuOffload(),
        ts.Quantize(bits=4),
    ]


def run(
    seed: int,
    setting: Setting,
    scenario: Scenario = program,
    backend: Callable[[], ReferenceBackend] = ReferenceBackend,
    copies: type[Transfers] = Transfers,
) -> list[bytes]:
    """Return what the program computes in the interleaving of ``seed``."""
    with scheduled(seed) as host:
        one = session(setting.policy, host, setting.limits, backend, copies)
        got = scenario(random.Random(setting.program_seed), one.scope)
        while host.work():
            pass
        assert one.stats().live.tensors == 0
    return got


def expected(setting: Setting, scenario: Scenario) -> list[bytes]:
    """Return what the program computes on a device that does everything at once."""
    one = Session(setting.policy, ReferenceBackend(), min_bytes=0, limits=setting.limits)
    got = scenario(random.Random(setting.program_seed), one.scope)
    one.drain()
    return got


OFFLOAD = [ts.CpuOffload()]
QUANTIZE = [ts.Quantize(bits=8)]
SCENARIOS = [(asked_aside, QUANTIZE), *((each, OFFLOAD) for each in (aside, asked_aside, prefetched, dropped_prefetch))]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_interleaving_gives_the_same_gradients(chunk: int) -> None:
    cases = [(program, policies(), INTERLEAVINGS), *((*each, INTERLEAVINGS // 4) for each in SCENARIOS)]
    for scenario, made, count in cases:
        for seed in range(chunk, count, CHUNKS):
            setting = Setting.of(seed, made)
            assert run(seed, setting, scenario) == expected(setting, scenario), f"{scenario}, seed {seed}: {setting}"


PLANTED: list[tuple[type, Scenario, list[Any]]] = [
    (lacks.CopyOutBeforeTheSourceIsWritten, program, OFFLOAD),
    (lacks.SourceReusedBeforeItsCopyEnded, program, OFFLOAD),
    (lacks.SourceOfAnotherStreamReused, aside, OFFLOAD),
    (lacks.SourceReadOnAnotherStreamReused, asked_aside, OFFLOAD),
    (lacks.ReloadIntoMemoryThatIsStillUsed, program, OFFLOAD),
    (lacks.ReloadOvertakesItsOwnOffload, prefetched, OFFLOAD),
    (lacks.BufferFromThePoolOfTheCopyStream, program, OFFLOAD),
    (lacks.TensorHandedOutBeforeItArrived, program, OFFLOAD),
    (lacks.ArrivalDroppedUnderItsCopy, dropped_prefetch, OFFLOAD),
    (lacks.TensorHandedToAnotherStream, program, OFFLOAD),
    (lacks.StaleComputeStream, program, OFFLOAD),
    (lacks.HostMemoryReusedBeforeItsCopyEnded, program, [ts.Compress(min_ratio=1)]),
    (lacks.ViewPackedOnTheCopyStream, program, OFFLOAD),
    (lacks.HostReadsBeforeTheCopyEnded, program, [ts.Compress(min_ratio=1)]),
    (lacks.PayloadOnDeviceReusedByItsOwnStream, asked_aside, QUANTIZE),
]


RARE: dict[type, int] = {
    lacks.SourceReadOnAnotherStreamReused: 250,
    lacks.ReloadOvertakesItsOwnOffload: 710,
    lacks.ArrivalDroppedUnderItsCopy: 120,
    lacks.TensorHandedToAnotherStream: 30,
}
"""Seeds before these notice nothing."""


def planted(fault: type) -> dict[str, Callable[..., Any]]:
    """Return what :func:`run` is to be built of."""
    if not issubclass(fault, BackendFault):
        return {"copies": fault}

    def faulty() -> ReferenceBackend:
        stream = cache(partial(Stream, name="side"))
        backend: ReferenceBackend = fault.put(ReferenceBackend(), lambda device: use_stream(stream(device)))
        return backend

    return {"backend": faulty}


@pytest.mark.parametrize(("fault", "scenario", "policies"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_guard_that_is_gone_is_noticed(fault: type, scenario: Scenario, policies: list[Any]) -> None:
    plant = planted(fault)
    first = RARE.get(fault, 0)
    for seed in range(first, first + MOST_TRIES):
        setting = Setting.of(seed, policies)
        try:
            got = run(seed, setting, scenario, **plant)
        except CodecError:  # of a payload that is not what was encoded
            return
        if got != expected(setting, scenario):
            return
    raise AssertionError(f"{fault.__doc__} Nothing was noticed in {MOST_TRIES} interleavings.")


def test_computation_goes_on_beside_copies_of_what_is_not_asked_for_any_more() -> None:
    class OnlyComputes(Host):
        """Comes to no copy before the end."""

        def pauses(self) -> bool:
            return True

        def pick(self, streams: Any) -> Any:
            computing = [stream for stream in streams if stream.name == "default"]
            assert computing or is_over, "the computation waits for a copy"
            return (computing or streams)[0]

    is_over = False
    with asynchronous(OnlyComputes(0)):
        one = Session(ts.CpuOffload(), ReferenceBackend(), min_bytes=0, limits=ts.Limits(in_flight=10**6))
        with one.scope():
            handles = [one.pack(ref.full(SHAPE, value, device="sim:0") * 1.0) for value in range(4)]
        for value in (3, 2):
            got = one.unpack(handles.pop())
            assert (got * 1.0).host_bits().tobytes() == np.full(SHAPE, value, np.float32).tobytes()
        is_over = True
        one.drain()


def test_nothing_on_the_programs_thread_waits_for_the_device() -> None:
    class Never(Host):
        """Does nothing unless somebody waits, and then complains."""

        def pauses(self) -> bool:
            return True

        def pick(self, streams: Any) -> Any:
            assert is_over, "the host waits for the device"
            return super().pick(streams)

    is_over = False
    kept: list[Any] = []  # sessions wait for their copies when they go
    with asynchronous(Never(0)):
        for limits in (ts.Limits(), ts.Limits(in_flight=300, ahead=300), ts.Limits(in_flight=0, ahead=0)):
            for policy in (ts.CpuOffload(), ts.Quantize(bits=8) | ts.CpuOffload(), ts.Quantize(bits=8)):
                one = Session(policy, ReferenceBackend(), min_bytes=0, limits=limits)
                leaf = ref.full(SHAPE, 0.5, device="sim:0", requires_grad=True)
                with one.scope():
                    loss = (leaf.tanh().T * 2.0).exp().tanh().sum()
                loss.backward()
                kept.append(one)
        is_over = True
