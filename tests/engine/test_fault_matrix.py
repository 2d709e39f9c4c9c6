"""Every fault in every store, on every backend, through the whole engine: nothing is lost quietly.

A step that meets a fault ends in a named error or in the right gradients; nothing is left of it, and the next step
trains on.
"""

import os
import re
import sys
import tempfile
import threading
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conditions import assert_nothing_is_held
from fault_matrix import CELLS, FAULTS, LIMITS, SHAPE, STORES, Cell
from inside import session_of, set_timeout, settle
from planted_faults import Faulty, Site

import tensorstash as ts
from tensorstash.errors import StashError, StoreError
from tensorstash.host.arrays import Array
from tensorstash.testing.harness import reference_counting_only
from tensorstash.testing.lab import Lab
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the faults are those of POSIX")


def step(lab: Lab, shape: tuple[int, int], stash: ts.Stash | None = None, timeout_s: float = 60) -> Array:
    """Return the gradient of a program that saves six contents, the last of them twice."""
    leaf = lab.tensor(floats(*shape), requires_grad=True)
    with stash or nullcontext():
        x = leaf * 1.0
        for _ in range(6):
            x = x.tanh()
        loss = (x * x).sum()
    if stash is not None:
        settle(stash)
        set_timeout(stash, timeout_s)
    lab.backward(loss)
    return lab.gradient(leaf)


@cache
def expected(backend: str, shape: tuple[int, int]) -> Array:
    return step(lab_of(backend), shape)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def assert_nothing_is_left(stash: ts.Stash, store: Faulty, lab: Lab) -> None:
    # PyTorch's queue of this thread holds what a failed backward left in it until the next backward.
    step(lab, (1, 1))
    set_timeout(stash, 60)
    assert_nothing_is_held(stash)
    assert store.used_bytes == 0


def run(cell: Cell, first: Path, last: Path) -> None:
    fault, lab = FAULTS[cell.fault], lab_of(cell.backend)
    right = expected(cell.backend, SHAPE)
    store = Faulty(STORES[cell.store](str(first), str(last)), verifies=fault.verifies)
    policy = fault.policy(store)

    def stash() -> ts.Stash:
        return ts.stash(policy, framework=lab.name, min_bytes=0, limits=LIMITS[cell.limits])

    if fault.at_open:
        with fault.plant(Site(store, last)), pytest.raises(StoreError, match=fault.says) as caught:
            stash()
        assert str(last.parent) in str(caught.value)
        assert not store.used_bytes
        del caught
        store.opened.clear()
        under_test = stash()
    else:
        under_test = stash()
        if fault.hangs == "put":
            set_timeout(under_test, fault.timeout_s)
        with fault.plant(Site(store, last, session_of(under_test))):
            if fault.ends is None:
                assert np.array_equal(step(lab, SHAPE, under_test), right)
            else:
                assert_fails(cell, under_test)
    assert_nothing_is_left(under_test, store, lab)
    for _ in range(2):
        got = step(lab, fault.next_shape, under_test)
        assert np.array_equal(got, expected(cell.backend, fault.next_shape)), "the step after the fault"
    assert_nothing_is_left(under_test, store, lab)
    assert under_test.stats().stored


def assert_fails(cell: Cell, stash: ts.Stash) -> None:
    fault = FAULTS[cell.fault]
    with pytest.raises(StashError) as caught:
        step(lab_of(cell.backend), SHAPE, stash, fault.timeout_s)
    stage = r"stage 1 of 2 \(FaultyCodec" if fault.codec else r"stage (\d) of \1 \(Faulty\(inner=(Memory|Disk)"
    place = rf"^{stage}.*\), tensor float32\(48, 64\) on \S*cpu\S*: "
    kind, message = caught.type, str(caught.value)
    del caught  # with this frame it is a cycle
    assert kind is fault.ends
    assert re.search(place, message), message
    assert re.search(fault.says, message), message


@pytest.fixture(scope="module", autouse=True)
def only_reference_counting_frees():
    with reference_counting_only():
        yield


@pytest.fixture(autouse=True)
def killing_a_thread_is_no_error(monkeypatch):
    """SystemExit ends a thread without a word, as it does outside of pytest."""
    report = threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda args: None if args.exc_type is SystemExit else report(args))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_fault_ends_in_a_named_error_or_the_right_gradients_and_the_next_step_trains_on(cell):
    # A framework may keep an error of its first import, and with it every frame below: here, where they hold nothing.
    lab_of(cell.backend)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        first, last = Path(scratch, "first"), Path(scratch, "last")
        first.mkdir()
        last.mkdir()
        before = descriptors()
        run(cell, first, last)
        assert descriptors() == before
        assert os.listdir(first) == os.listdir(last) == []
