"""A child that is forked inside the block trains at once, or is told at once why it cannot."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from gates import Gated
from inside import in_flight, session_of

import tensorstash as ts
from tensorstash.errors import StoreError
from tensorstash.host.budget import ByteBudget
from tensorstash.host.pool import PagePool
from tensorstash.host.workers import Workers
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import floats
from tests.processes import FORKS, forked, locks_held, output_of
from tests.samples import IS_LONG

HERE = Path(__file__).parent
pytestmark = FORKS

POLICIES = {
    "memory": lambda directory: StoreIn(Memory()),
    "disk": lambda directory: ts.DiskSpill(directory),
    "compressed disk": lambda directory: ts.Compress(min_ratio=1) | ts.DiskSpill(directory),
    "quantize": lambda directory: ts.Quantize(8),
}


def graph(lab, stash, seed=0):
    leaf = lab.tensor(floats(64, 64, seed=seed), device=lab.devices[0], requires_grad=True)

    def forward():
        x = lab.mul(leaf, 1.0)
        for _ in range(4):
            x = lab.tanh(lab.mul(x, x))
        return lab.sum(x)

    if stash is None:
        return leaf, forward()
    with stash:
        return leaf, forward()


def gradient(lab, stash, seed=0):
    leaf, loss = graph(lab, stash, seed)
    lab.backward(loss)
    return lab.gradient(leaf)


class InParent(Gated):
    """Memory whose puts hang, in the process that has opened it alone."""

    def open(self):
        store, here = super().open(), os.getpid()
        held = store.put
        store.put = lambda data: held(data) if os.getpid() == here else store.inner.put(data.copy())
        return store


@pytest.mark.parametrize("framework", BACKENDS)
def test_a_child_waits_for_no_bytes_that_only_threads_of_the_parent_would_give_back(framework):
    lab, gate = lab_of(framework), InParent()
    limits = ts.Limits(in_flight=4 * 64 * 64 * 6)
    stash = ts.stash(StoreIn(gate), framework=framework, min_bytes=0, limits=limits)
    expected = gradient(lab, None)
    gate.puts.clear()
    leaf, loss = graph(lab, stash)
    session = session_of(stash)
    if framework == "torch":
        session.sender.start(session._residency.clear(), session.places)
    gate.arrived.acquire()  # a writer is inside put
    assert in_flight(session).used > 0

    def child():
        for _ in range(3):
            assert np.array_equal(gradient(lab, stash), expected)
        session.drain()
        assert in_flight(session).used == 0
        lab.backward(loss)  # what was in flight has never left
        assert np.array_equal(lab.gradient(leaf), expected)

    assert forked(child) == 0
    gate.puts.set()
    lab.backward(loss)
    assert np.array_equal(lab.gradient(leaf), expected)
    assert np.array_equal(gradient(lab, stash), expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("framework", BACKENDS)
def test_a_child_trains_whatever_locks_were_held_at_the_fork(framework, policy, tmp_path):
    lab = lab_of(framework)
    stash = ts.stash(POLICIES[policy](str(tmp_path)), framework=framework, min_bytes=0)
    expected = [gradient(lab, stash, seed) for seed in (0, 0, 1)]
    loss = graph(lab, stash)[1]
    stash.drain()

    def child():
        assert all(np.array_equal(gradient(lab, stash, seed), expected[1 + seed]) for seed in (0, 1, 0))
        assert stash.stats().stashed.tensors > 0

    with locks_held() as locks:
        assert len(locks) >= 6
        assert forked(child) == 0
    lab.backward(loss)
    assert np.array_equal(gradient(lab, stash), expected[1])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("framework", BACKENDS)
def test_a_graph_of_the_parent_is_walked_in_the_child_or_refused_at_once(framework, policy, tmp_path):
    lab = lab_of(framework)
    stash = ts.stash(POLICIES[policy](str(tmp_path)), framework=framework, min_bytes=0)
    gradient(lab, stash)
    expected = gradient(lab, stash)
    leaf, loss = graph(lab, stash)
    stash.drain()

    def child():
        if "disk" not in policy:
            lab.backward(loss)
            assert np.array_equal(lab.gradient(leaf), expected)
            return
        with pytest.raises(StoreError, match=r"was stored before this process was forked .*in process"):
            lab.backward(loss)
        assert np.array_equal(gradient(lab, stash), expected)

    assert forked(child) == 0
    lab.backward(loss)
    assert np.array_equal(lab.gradient(leaf), expected)


@pytest.mark.parametrize("limit", [None, 0])
def test_a_child_gets_fresh_pages(limit):
    pool = PagePool(2**23)
    pool.take(2**20)

    def child():
        if limit is not None:
            pool.keep(limit)
        taken = pool.take(2**20)
        taken[:] = 1
        assert taken.sum() == 2**20

    with locks_held():
        assert forked(child) == 0


def test_what_other_threads_have_taken_of_a_budget_is_free_in_a_child():
    budget = ByteBudget(10)
    lease = budget.try_acquire(10)

    def child():
        assert budget.used == 0
        assert budget.acquire(10, timeout_s=30) is not None

    with locks_held():
        assert forked(child) == 0
    assert budget.used == 10
    del lease


def test_a_child_waits_for_no_work_of_its_parents_workers():
    go_on = threading.Event()
    workers = Workers("test", 1)
    future = workers.submit(lambda: go_on.wait(60))

    def child():
        assert isinstance(future.exception(), RuntimeError)
        assert workers.submit(lambda: 7).result(10) == 7

    with locks_held():
        assert forked(child) == 0
    go_on.set()
    assert future.result(60) is True


def test_a_child_of_a_child_trains(tmp_path):
    lab = lab_of("reference")
    stash = ts.stash(ts.DiskSpill(str(tmp_path)), framework="reference", min_bytes=0)
    expected = gradient(lab, stash)

    def child():
        assert np.array_equal(gradient(lab, stash), expected)
        assert forked(lambda: np.testing.assert_array_equal(gradient(lab, stash), expected)) == 0
        assert np.array_equal(gradient(lab, stash), expected)

    assert forked(child) == 0


@pytest.mark.parametrize(
    ("framework", "method"),
    [
        ("torch", "fork"),
        ("torch", "spawn"),
        ("paddle", "fork"),
        *[("torch", "process"), ("paddle", "process")] * IS_LONG,
    ],
)
def test_workers_of_data_loaders_inside_the_block_compute_at_once(framework, method, tmp_path):
    assert output_of(HERE / "forked_loaders.py", framework, method, tmp_path) == "memory\ndisk\nquantize\n"
    assert os.listdir(tmp_path) == []
