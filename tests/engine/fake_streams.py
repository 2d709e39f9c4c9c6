"""A session on simulated accelerators whose work is done in an order of choice, all on one thread.

Device work waits in its streams; host work, which threads would do, waits in queues. The schedule decides when any of
it is done: whenever the program submits work or asks how far the device is, and whenever it has to wait. So a seed is
an interleaving, and every interleaving can be had again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from asynchronous import Shuffled, asynchronous
from order_faults import with_copies

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.backends.reference.backend import ReferenceBackend
from tensorstash.engine.session import Session
from tensorstash.engine.transfers import Transfers
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.workers import Future
from tensorstash.reference import Tensor
from tensorstash.reference.storage.streams import Stream, default_stream, use_stream

SHAPE = (4, 8)


class Host(Shuffled):
    """A schedule that also does what threads of the host would do, between two steps of the device."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(seed).choice([0.05, 0.3, 0.6, 0.9, 0.98]))
        self._chance = random.Random(seed + 1)
        self._pace = self._chance.choice([0.02, 0.2, 0.8])
        self._favoured = self._chance.choice([None, None, "default", "side"])
        self.queue: deque[Callable[[], None]] = deque()
        self._is_working = False

    def pick(self, streams: Sequence[Stream]) -> Stream:
        favoured = [stream for stream in streams if stream.name == self._favoured]
        return super().pick(favoured if favoured and self._chance.random() < 0.9 else streams)

    def pauses(self) -> bool:
        if self._chance.random() < self._pace:
            self.work()
        return super().pauses()

    def work(self) -> bool:
        """Do the next piece of the host's work; return False if there is none, or one is being done."""
        if self._is_working or not self.queue:
            return False
        self._is_working = True
        try:
            self.queue.popleft()()
        finally:
            self._is_working = False
        return True


class Queue:
    """Stands in for worker threads."""

    timeout_s = 60.0

    def __init__(self, host: Host) -> None:
        self._host = host

    def submit(self, work: Callable[[], Any], *, ended: Callable[[], object] | None = None) -> Future[Any]:
        done: Future[Any] = _Driven(self._host, work, ended)
        self._host.queue.append(done.run)
        return done

    def abandon(self) -> None:
        raise AssertionError("the host gives up")


class _Driven(Future[Any]):
    def __init__(self, host: Host, work: Callable[[], Any], ended: Callable[[], object] | None) -> None:
        super().__init__(work, ended)
        self._host = host

    def fail(self, error: BaseException) -> None:
        super().fail(error.with_traceback(None))  # whose frames refer to the whole program here

    def outcome(self, timeout_s: float | None = None) -> tuple[Any, BaseException | None]:
        while not self.done():
            assert self._host.work(), "waiting for work that is not there"
        return super().outcome(0)


class DrivenBudget(ByteBudget):
    """A budget whose waiters do the host's work meanwhile."""

    def __init__(self, limit: int, host: Host) -> None:
        super().__init__(limit)
        self._host = host

    def acquire(self, nbytes: int, *, timeout_s: float) -> Lease | None:
        while (lease := self.try_acquire(nbytes)) is None:
            assert self._host.work(), "waiting for bytes that never come back"
        return lease


def session(
    policy: Any,
    host: Host,
    limits: ts.Limits,
    backend: Callable[[], ReferenceBackend] = ReferenceBackend,
    copies: type[Transfers] = Transfers,
) -> Session[Any]:
    """Return a session whose threads are the schedule's."""
    one = with_copies(Session(policy, backend(), min_bytes=0, limits=limits), copies)
    one.sender.writers = Queue(host)  # type: ignore[assignment]
    one.state.prefetcher.readers = Queue(host)  # type: ignore[assignment]
    one.sender.in_flight = DrivenBudget(limits.in_flight_bytes, host)
    return one


@contextmanager
def scheduled(seed: int) -> Iterator[Host]:
    """Let devices and host work in the order of ``seed`` until the block ends."""
    host = Host(seed)
    with asynchronous(host):
        yield host
        while host.work():
            pass


def program(choose: random.Random, scope: Callable[[], Any]) -> list[bytes]:
    """Run a program of a few steps with graphs drawn from ``choose``; return the gradients' bits.

    What it saves is its own, views, transposed, columns, shared by several operations and freed early; some graphs are
    walked twice, some never; on one or two devices. Each graph has a stream, and hands over to the next by events.
    """
    streams = {(device, name): Stream(device, name) for device in ("sim:0", "sim:1") for name in ("first", "second")}
    gradients: list[bytes] = []
    for _ in range(choose.randint(1, 3)):
        device = choose.choice(["sim:0", "sim:0", "sim:1"])
        names = [choose.choice([None, None, "first", "second"]) for _ in range(choose.randint(1, 2))]
        own = [streams[device, name] if name else default_stream(device) for name in names]
        gradients += _step(choose, device, scope, own)
    return gradients


@contextmanager
def inside(stream: Stream) -> Iterator[None]:
    """Submit work to ``stream``, after what the default stream was given, which goes on after it."""
    main = default_stream(stream.device)
    stream.wait_event(main.record())
    with use_stream(stream):
        yield
    main.wait_event(stream.record())


def _step(choose: random.Random, device: str, scope: Callable[[], Any], streams: Sequence[Stream]) -> list[bytes]:
    weights = np.random.default_rng(choose.randint(0, 9)).uniform(-1, 1, SHAPE).astype(np.float32)
    leaf = ref.tensor(weights, device=device, requires_grad=True)
    graphs = []
    for stream in streams:
        with inside(stream), scope():
            x = leaf * 1.0
            for _ in range(choose.randint(2, 6)):
                x = choose.choice(OPERATIONS)(x)
            graphs.append(((x * x).sum(), stream))
    if choose.random() < 0.7:
        graphs.reverse()
    never = graphs.pop() if choose.random() < 0.3 else None
    for loss, stream in graphs:
        again = choose.random() < 0.3
        with inside(stream):
            loss.backward(retain_graph=again)
            if again:
                loss.backward()
    del never
    return [leaf.grad.host_bits().tobytes()] if leaf.grad is not None else []


OPERATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.tanh(),
    lambda x: (x * 0.1).exp(),
    lambda x: x * (x * 0.5) * x,
    lambda x: (x.reshape(2, -1) * x.reshape(2, -1)).reshape(*x.shape),
    lambda x: (x.T * x.T).T,
    lambda x: x * x[:, 0:1],
    lambda x: (x.tanh() + x).add_(1.0),
    lambda x: x * ref.full(x.shape, 0.5, device=x.device),  # memory that is free again at once
]
