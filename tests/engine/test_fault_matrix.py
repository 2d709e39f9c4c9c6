"""Every fault in every store, on every backend, through the whole engine: nothing is lost quietly.

A step that meets a fault ends in a named error or in the right gradients; nothing is left of it, and the next step
trains on.
"""

import gc
import os
import re
import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from fault_matrix import FAULTS, GAPS, LIMITS, SHAPE, STORES, Cell, cells, gap, impossible
from labs import BACKENDS, lab_of
from planted_faults import Faulty, Site

import tensorstash as ts
from tensorstash.buffers import Array
from tensorstash.errors import StashError, StoreError
from tensorstash.testing.harness import scratch_directory
from tensorstash.testing.lab import Lab
from tensorstash.testing.layouts import floats

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the faults are those of POSIX")

RUN = [cell for cell in cells() if impossible(cell) is None]


def step(
    lab: Lab, shape: tuple[int, int], scope: AbstractContextManager[object] | None = None, *, patience_s: float = 60
) -> Array:
    """Return the gradient of a program that saves six contents, the last of them twice."""
    leaf = lab.tensor(floats(*shape), device=lab.devices[0], requires_grad=True)
    with scope or nullcontext():
        x = lab.mul(leaf, 1.0)
        for _ in range(6):
            x = lab.tanh(x)
        loss = lab.sum(lab.mul(x, x))
    if isinstance(scope, ts.Stash):
        settle(scope, patience_s)
    lab.backward(loss)
    return lab.gradient(leaf)


@cache
def expected(backend: str, shape: tuple[int, int]) -> Array:
    return step(lab_of(backend), shape)


def settle(stash: ts.Stash, patience_s: float) -> None:
    """Wait until nothing is written and nothing is read."""
    session = stash._session
    session.limits = replace(session.limits, timeout_s=patience_s)
    session.drain()
    for workers in session._writers, session._state.ahead._readers:
        workers.submit(lambda: None).result(patience_s)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def assert_nothing_is_held(stash: ts.Stash, store: Faulty, lab: Lab, patience_s: float) -> None:
    # PyTorch's queue of this thread holds what a failed backward left in it until the next backward.
    step(lab, (1, 1))
    settle(stash, patience_s)
    session = stash._session
    assert stash.stats().live.tensors == 0
    assert store.used_bytes == 0
    assert (session._in_flight.used, session._state.ahead.budget.used) == (0, 0)


def run(cell: Cell, first: Path, last: Path) -> None:
    fault, lab = FAULTS[cell.fault], lab_of(cell.backend)
    right = expected(cell.backend, SHAPE)
    store = Faulty(STORES[cell.store](str(first), str(last)), verifies=fault.verifies)
    policy, limits = fault.policy(store), fault.limits(cell.limits)
    patience_s = 60 if gap(cell) is None else 0.2
    limits = replace(limits, timeout_s=min(limits.timeout_s, patience_s))

    def stash() -> ts.Stash:
        return ts.stash(policy, framework=lab.name, min_bytes=0, limits=limits)

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
        with fault.plant(Site(store, last, under_test._session)):
            if fault.ends is None:
                assert np.array_equal(step(lab, SHAPE, under_test, patience_s=patience_s), right)
            else:
                assert_fails(cell, under_test, patience_s)
    assert_nothing_is_held(under_test, store, lab, patience_s)
    for _ in range(2):
        got = step(lab, fault.next_shape, under_test, patience_s=patience_s)
        assert np.array_equal(got, expected(cell.backend, fault.next_shape)), "the step after the fault"
    assert_nothing_is_held(under_test, store, lab, patience_s)
    assert under_test.stats().stored


def assert_fails(cell: Cell, stash: ts.Stash, patience_s: float) -> None:
    fault = FAULTS[cell.fault]
    with pytest.raises(StashError) as caught:
        step(lab_of(cell.backend), SHAPE, stash, patience_s=patience_s)
    stage = r"stage 1 of 2 \(FaultyCodec" if fault.codec else r"stage (\d) of \1 \(Faulty\(inner=(Memory|Disk|Tiered)"
    place = rf"^{stage}.*\), tensor float32\(48, 64\) on \S*cpu\S*: "
    kind, message = caught.type, str(caught.value)
    del caught  # with this frame it is a cycle
    assert kind is fault.ends
    assert re.search(place, message), message
    assert re.search(fault.says, message), message


@pytest.fixture(scope="module", autouse=True)
def reference_counting_only():
    """Only reference counting frees; what is there already is left alone, which would take longest to look through."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def marked(cell: Cell) -> ParameterSet:
    reason = gap(cell)
    return pytest.param(cell, marks=[pytest.mark.xfail(strict=True, reason=reason)] if reason else [])


@pytest.mark.parametrize("cell", [marked(cell) for cell in RUN], ids=str)
def test_a_fault_ends_in_a_named_error_or_the_right_gradients_and_the_next_step_trains_on(cell):
    with scratch_directory() as scratch:
        Path(scratch).chmod(0o755)
        first, last = Path(scratch, "first"), Path(scratch, "last")
        first.mkdir()
        last.mkdir()
        before = descriptors()
        run(cell, first, last)
        assert descriptors() == before
        assert os.listdir(first) == os.listdir(last) == []


def test_the_matrix_is_complete():
    reasons = {cell: impossible(cell) for cell in cells()}
    missing = Counter((cell.fault, reason) for cell, reason in reasons.items() if reason)
    gaps = Counter(reason for cell in RUN if (reason := gap(cell)))
    print(f"{len(RUN)} of {len(reasons)} cells run, {len(reasons) - len(RUN)} cannot exist:")
    for (fault, reason), number in missing.items():
        print(f"  {fault}: {number}, since {reason}")
    print(f"{gaps.total()} of those that run do not end as they should:")
    for reason, number in gaps.items():
        print(f"  {number}, since {reason}")
    assert len(reasons) == len(FAULTS) * len(STORES) * len(LIMITS) * len(BACKENDS) == 45 * 5 * 2 * 3
    assert len(RUN) == 1101
    assert {(cell.fault, cell.backend) for cell in RUN} == set(product(FAULTS, BACKENDS))
    assert GAPS.keys() <= {(cell.fault, cell.limits) for cell in RUN}
