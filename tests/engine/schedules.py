"""Random schedules of training threads that share one session under tight budgets, and a device that stalls."""

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
from planted_faults import Faulty

import tensorstash as ts
from tensorstash.errors import StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.pages import BLOCK
from tensorstash.policies import StoreIn
from tensorstash.protocols import Slot, StoreConfig
from tensorstash.stores import Disk, Memory, Tiered
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.memory import MemoryStore
from tensorstash.testing.lab import Lab
from tensorstash.testing.labs import BACKENDS
from tensorstash.testing.layouts import floats

WIDTH = 32


class TellingBudget(ByteBudget):
    """A budget that opens a gate when somebody has to wait for bytes."""

    def __init__(self, limit: int, gate: threading.Event) -> None:
        super().__init__(limit)
        self._gate = gate
        self.waits = 0

    def acquire(self, nbytes: int, *, timeout_s: float) -> Lease | None:
        if (lease := self.try_acquire(nbytes)) is not None:
            return lease
        self.waits += 1
        self._gate.set()
        return super().acquire(nbytes, timeout_s=timeout_s)


@dataclass
class Auditor:
    """Looks after every put at what stores really hold, and holds the first put of a writer back until the gate opens.

    Args:
        stores: what is looked at; filled as stores open.
        gate: opens when a thread has to wait for bytes in flight, or has saved all it had to save.
        stalls: which put of a writer waits for the gate; 0 for none.
    """

    stores: WeakSet[MemoryStore | DiskStore]
    stalls: int
    gate: threading.Event = field(default_factory=threading.Event)
    puts: int = 0
    excess: list[str] = field(default_factory=list)

    def put(self, call: Callable[[Array], Slot], data: Array) -> Slot:
        if threading.current_thread().name.startswith("tensorstash-writer"):
            self.puts += 1
            if self.puts == self.stalls:
                assert self.gate.wait(60)
        try:
            return call(data)
        finally:
            self.audit()

    def audit(self) -> None:
        for store in self.stores:
            budget: Any = store._config.budget
            if budget is None:
                continue
            if isinstance(store, MemoryStore):
                taken = sum(array.nbytes for array in list(store._arrays.values()))
            else:
                used = store.used_bytes
                taken = os.fstat(store._slab._file.fd).st_size if store._slab else 0
                assert taken >= used
            if taken > budget:
                self.excess.append(f"{taken} bytes in {store._config!r}")


@dataclass(frozen=True)
class Schedule:
    """What runs, and under which budgets.

    Args:
        framework: a backend's name.
        store: where payloads go.
        limits: of the session.
        compresses: whether payloads are encoded on the way.
        steps: for each thread the rows of its steps.
        nested: whether the forward differentiates, and so unpacks while it packs.
        stalls: which put of a writer is held back; 0 for none.
    """

    framework: str
    store: StoreConfig
    limits: ts.Limits
    compresses: bool
    steps: tuple[tuple[int, ...], ...]
    nested: bool
    stalls: int


def schedule(seed: int, directory: str) -> Schedule:
    choose = random.Random(seed)
    memory = Memory(budget=choose.choice([4096, 20_000, 100_000, None]))
    disk = Disk(directory=directory, budget=choose.choice([4 * BLOCK, 20 * BLOCK, 100 * BLOCK, None]))
    budgets = [0, 1000, WIDTH * 4 * 64, WIDTH * 4 * 150, 10**6]
    framework = choose.choice(BACKENDS)
    nested = choose.random() < 0.4
    # paddle.grad keeps its state in one object of the process, and crashes on two threads at once.
    threads = 1 if nested and framework == "paddle" else choose.choice([1, 1, 2, 3])
    return Schedule(
        framework=framework,
        store=choose.choice([memory, disk, Tiered(first=memory, then=disk)]),
        limits=ts.Limits(
            in_flight=choose.choice(budgets),
            ahead=choose.choice(budgets),
            writers=choose.randint(1, 3),
            readers=choose.randint(1, 3),
            timeout_s=60,
        ),
        compresses=choose.random() < 0.3,
        steps=tuple(tuple(choose.choice([1, 8, 33, 64]) for _ in range(3)) for _ in range(threads)),
        nested=nested,
        stalls=choose.choice([0, 1, 2, 3]),
    )


def gradient(lab: Lab, rows: int, nested: bool, stash: ts.Stash | None, gate: threading.Event | None = None) -> Array:
    """Return the gradient of a program with eight saved contents, or twice as many if it differentiates on the way."""
    leaf = lab.tensor(floats(rows, WIDTH), requires_grad=True)
    if stash is not None:
        stash.__enter__()
    try:
        x = lab.mul(leaf, 1.0)
        for _ in range(8):
            x = lab.tanh(x)
        loss = lab.sum(lab.mul(x, x))
        if nested:
            (slope,) = lab.grad(loss, [leaf], create_graph=True)
            loss = lab.sum(lab.mul(slope, lab.tanh(slope)))
    finally:
        if stash is not None:
            stash.__exit__(None, None, None)
        if gate is not None:
            gate.set()
    lab.backward(loss)
    return lab.gradient(leaf)


@dataclass
class Run:
    """What a schedule has led to.

    Args:
        trained: steps with the right gradients.
        refused: steps that ended because a store was full.
        wrong: what must not be.
    """

    trained: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def run(plan: Schedule, lab: Lab, right: Callable[[int, bool], Array]) -> Run:
    """Run a schedule on its threads, check budgets all the way, and return what came of it."""
    store = Faulty(plan.store)
    # The program itself waits for the put of a tensor that is larger than what may be in flight.
    fits = plan.limits.in_flight_bytes >= max(map(max, plan.steps)) * WIDTH * 4
    auditor = Auditor(store.opened, plan.stalls if fits else 0)
    store.board.plant("put", auditor.put, 1)
    policy = ts.Compress(min_ratio=1) | StoreIn(store) if plan.compresses else StoreIn(store)
    stash = ts.stash(policy, framework=plan.framework, min_bytes=0, limits=plan.limits)
    session = stash._session
    session._sender.in_flight = TellingBudget(plan.limits.in_flight_bytes, auditor.gate)
    done = Run()

    def train(steps: tuple[int, ...]) -> None:
        try:
            for rows in steps:
                try:
                    got = gradient(lab, rows, plan.nested, stash, auditor.gate)
                except StoreFullError:
                    done.refused += 1
                else:
                    if np.array_equal(got, right(rows, plan.nested)):
                        done.trained += 1
                    else:
                        done.wrong.append(f"the gradient of {rows} rows")
        except BaseException as error:
            done.wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=train, args=(steps,), daemon=True) for steps in plan.steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        if thread.is_alive():
            raise TimeoutError(f"a thread hangs under {plan}")
    # Frameworks hold what a failed call left in them: PyTorch until the thread's next backward, paddle.grad until the
    # next paddle.grad.
    gradient(lab, 1, plan.nested, None)
    session.drain()
    _wait_for_readers(session._state.prefetcher.readers.submit, plan.limits.readers)
    peaks = {
        "in flight": (session._sender.in_flight, plan.limits.in_flight_bytes),
        "ahead": (session._state.prefetcher.budget, plan.limits.ahead_bytes),
    }
    for name, (budget, limit) in peaks.items():
        if budget.peak > limit or budget.used:
            done.wrong.append(f"{name}: {budget.used} bytes used, {budget.peak} at most, of {limit}")
    if store.used_bytes or stash.stats().live.tensors:
        done.wrong.append(f"left: {store.used_bytes} bytes, {stash.stats().live}")
    done.wrong += auditor.excess
    return done


def _wait_for_readers(submit: Callable[[Callable[[], int]], object], readers: int) -> None:
    """Return when no reader holds a payload any more, because each has come to other work."""
    idle = threading.Barrier(readers + 1, timeout=400)
    for _ in range(readers):
        submit(idle.wait)
    idle.wait()
