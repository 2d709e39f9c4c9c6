"""What must hold over many steps and many schedules: nothing grows, no budget is exceeded, nothing waits for ever."""

import errno
import gc
import sys
import threading
from collections import Counter
from collections.abc import Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from inside import ahead, session_of
from planted_faults import Faulty

import tensorstash as ts
from tensorstash.host.arrays import Array
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.policies import StoreIn
from tensorstash.stores import Disk, Memory
from tensorstash.testing.lab import Lab
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import floats
from tests.processes import output_of
from tests.samples import IS_LONG

WIDTH = 32


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("framework", BACKENDS if IS_LONG else BACKENDS[1:])
def test_what_a_process_holds_is_flat_after_ten_steps(framework, tmp_path):
    options = "--framework", framework, "--policy", "compress | disk_spill", "--directory", tmp_path
    output_of("from tests.endurance import main; exit(main())", *options, "--steps", "100", "--tolerance-mib", "8")


def gradient(lab: Lab, rows: int, nested: bool, scope: Any = None) -> Array:
    """Return the gradient of a program with eight saved contents, or twice as many if it differentiates on the way."""
    leaf = lab.tensor(floats(rows, WIDTH), requires_grad=True)
    with scope or nullcontext():
        x = leaf * 1.0
        for _ in range(8):
            x = x.tanh()
        loss = (x * x).sum()
        if nested:
            (slope,) = lab.grad(loss, [leaf], create_graph=True)
            loss = (slope * slope.tanh()).sum()
    lab.backward(loss)
    return lab.gradient(leaf)


@cache
def right(framework: str, rows: int, nested: bool) -> Array:
    return gradient(lab_of(framework), rows, nested)


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


@pytest.mark.parametrize("framework", BACKENDS)
def test_a_full_budget_a_blocked_writer_and_an_unpack_inside_the_forward_do_not_deadlock(framework, tmp_path):
    """The forward differentiates: it unpacks while the writer is blocked, and packs until no more may be in flight."""
    store = Faulty(Disk(directory=str(tmp_path)))
    nbytes = 8 * WIDTH * 4
    limits = ts.Limits(in_flight=10 * nbytes, ahead=nbytes, timeout_s=60)
    stash = ts.stash(StoreIn(store), framework=framework, min_bytes=0, limits=limits)
    gate = threading.Event()
    budget = session_of(stash).sender.in_flight = TellingBudget(10 * nbytes, gate)
    asked_meanwhile = []

    def put(call, data):
        assert gate.wait(60)
        asked_meanwhile.append(stash.stats().unpacked)
        return call(data)

    store.board.plant("put", put, 1)
    got = gradient(lab_of(framework), 8, True, stash)
    assert np.array_equal(got, right(framework, 8, True))
    assert budget.waits > 0, "the budget was never full"
    assert asked_meanwhile[0] > 0, "nothing was unpacked while the writer was blocked"
    assert budget.peak <= 10 * nbytes


@pytest.mark.parametrize("framework", BACKENDS)
def test_a_backward_inside_a_backward_gets_on_while_a_reader_is_blocked_and_its_budget_is_full(framework, tmp_path):
    lab = lab_of(framework)
    store = Faulty(Disk(directory=str(tmp_path)))
    nbytes = 8 * WIDTH * 4
    limits = ts.Limits(ahead=nbytes, readers=2, timeout_s=60)
    stash = ts.stash(StoreIn(store), framework=framework, min_bytes=0, limits=limits)
    gate, reading = threading.Event(), threading.Event()

    def chain(x):
        for _ in range(4):
            x = x.tanh()
        return x

    inner_leaf, outer_leaf = (lab.tensor(floats(8, WIDTH, seed=seed), requires_grad=True) for seed in range(2))

    def differentiate_inner(saved) -> None:
        assert reading.wait(60), "the reader has nothing to do"
        assert ahead(stash).used == nbytes, "the budget of the reader is not full"
        lab.backward(inner_loss)
        gate.set()

    def get(call, slot):
        reading.set()
        assert gate.wait(20)
        return call(slot)

    store.board.plant("get", get, 1, times=1)
    with stash as session:
        inner_loss = chain(inner_leaf).sum()
        middle = chain(outer_leaf)
        outer_loss = lab.observe(middle, [], differentiate_inner).tanh().sum()
    session.drain()
    lab.backward(outer_loss)
    plain_inner, plain_outer = (lab.tensor(floats(8, WIDTH, seed=seed), requires_grad=True) for seed in range(2))
    lab.backward(chain(plain_inner).sum())
    lab.backward(chain(plain_outer).tanh().sum())
    assert np.array_equal(lab.gradient(inner_leaf), lab.gradient(plain_inner))
    assert np.array_equal(lab.gradient(outer_leaf), lab.gradient(plain_outer))
    assert ahead(session).peak <= nbytes


@pytest.mark.parametrize("in_flight", [0, 10**6])
@pytest.mark.parametrize("framework", BACKENDS)
def test_threads_whose_unpacks_fail_get_the_stores_error_and_the_others_their_gradients(framework, in_flight):
    lab, store, failing = lab_of(framework), Faulty(Memory()), set()
    limits = ts.Limits(in_flight=in_flight, ahead=0, timeout_s=60)
    stash = ts.stash(StoreIn(store), framework=framework, min_bytes=0, limits=limits)
    expected, outcomes = right(framework, 33, False), Counter()

    def get(call, slot):
        if threading.get_ident() in failing:
            raise OSError(errno.ENXIO, "planted")
        return call(slot)

    # A thread that begins when another has ended may get its number.
    begin = threading.Barrier(4, timeout=400)

    def train(fails):
        if fails:
            failing.add(threading.get_ident())
        begin.wait()
        for _ in range(10):
            try:
                outcome = "right" if np.array_equal(gradient(lab, 33, False, stash), expected) else "wrong"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {'planted' if 'planted' in str(error) else error}"
            outcomes[fails, outcome] += 1

    store.board.plant("get", get, 1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, [True, True, False, False]))
    assert outcomes[False, "right"] == 20
    # What is not stored yet when it is asked for comes from its source, and does not fail.
    assert outcomes[True, "StoreError: planted"] + outcomes[True, "right"] * bool(in_flight) == 20, outcomes


@pytest.mark.parametrize("framework", BACKENDS)
@pytest.mark.parametrize("entries", ["one", "many"])
def test_what_only_goes_forward_is_not_remembered(framework, entries):
    """Scopes without a backward, as in an evaluation that records gradients: what is known is bounded by what lives."""
    lab = lab_of(framework)
    stash = ts.stash(StoreIn(Memory()), framework=framework, min_bytes=0)
    leaf = lab.tensor(floats(4, 4), requires_grad=True)

    def forward(times):
        for _ in range(times):
            with nullcontext() if entries == "one" else stash:
                x = leaf
                for _ in range(10):
                    x = (x * x).tanh()

    def known():
        stash.drain()
        gc.collect()
        parts = [*vars(session_of(stash)._stretch).values(), *vars(session_of(stash).state.ledger).values()]
        return max(len(part) for part in parts if isinstance(part, Sized))

    with stash if entries == "one" else nullcontext():
        forward(40)
        seen = stash.stats().seen.tensors
        assert known() <= 200
    assert seen >= 400
