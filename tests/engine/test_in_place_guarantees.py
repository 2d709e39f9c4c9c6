"""The guarantees about writes in place, each under every policy and limit and at every moment of a capture.

A write that bumps the version after the save is refused when the tensor is asked for, as autograd refuses it; after
``session.drain()`` what was saved is immune, unless it stays where it is. Neither depends on how far the workers are.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
from gates import Gated
from submissions import Submissions

import tensorstash as ts
from tensorstash.errors import SavedTensorModifiedError
from tensorstash.policies import StoreIn
from tensorstash.testing.lab import Lab
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

BACKENDS = ("reference", "torch", "paddle")

POLICIES = {
    "keep": lambda directory, gate: ts.Keep(),
    "memory": lambda directory, gate: StoreIn(gate),
    "compress": lambda directory, gate: ts.Compress(min_ratio=1) | StoreIn(gate),
    "disk": lambda directory, gate: ts.DiskSpill(directory),
    "compress | disk": lambda directory, gate: ts.Compress(min_ratio=1) | ts.DiskSpill(directory),
    "quantize": lambda directory, gate: ts.Quantize(8) | StoreIn(gate),
}

LIMITS = {
    "default": ts.Limits(),
    "synchronous": ts.Limits(in_flight=0),
    "nothing ahead": ts.Limits(ahead=0),
    "one byte": ts.Limits(in_flight=1, ahead=1),
    "tiny": ts.Limits(in_flight=300, ahead=300),
    "budget": ts.Limits(),
    "tiny budget": ts.Limits(),
    "many threads": ts.Limits(writers=4, readers=4),
}

BUDGETS = {"budget": 10**6, "tiny budget": 2000}

MOMENTS = ["before", "during", "after"]

NBYTES = 8 * 8 * 4


@pytest.fixture
def submissions(monkeypatch) -> Submissions:
    return Submissions.watch(monkeypatch)


class Scope:
    """A session whose workers are stopped where a test wants them.

    Args:
        policy: of :data:`POLICIES`.
        limits: of :data:`LIMITS`.
        moment: of :data:`MOMENTS`: what has been done of the captures when the forward pass is over.
    """

    def __init__(self, lab: Lab, policy: str, limits: str, moment: str, directory: str, submissions: Submissions):
        self.gate, self.moment, self._submissions = Gated(), moment, submissions
        waits = moment != "after" and LIMITS[limits].in_flight_bytes >= 8 * NBYTES
        if waits:  # else the forward pass itself would wait, too
            self.gate.puts.clear()
        made = POLICIES[policy](directory, self.gate)
        self.stash = ts.stash(made, framework=lab.name, min_bytes=0, limits=LIMITS[limits], budget=BUDGETS.get(limits))
        self._has_gate = waits and "disk" not in policy and policy != "keep"

    def reach(self) -> None:
        """Let the workers come to the moment, and no further."""
        if self.moment == "during" and self._has_gate:
            while self._submissions.are_under_way and not self.gate.arrived.acquire(timeout=0.01):
                pass
        elif self.moment == "after":
            self._submissions.wait()

    def open(self) -> None:
        """Let the workers go on to their end."""
        self.gate.puts.set()
        self._submissions.wait()


def values(lab: Lab, device: str = "cpu"):
    """Return a leaf and something that was computed from it."""
    leaf = lab.tensor(floats(8, 8), device=device, requires_grad=True)
    return leaf, lab.mul(leaf, 1.0)


WRITES = {
    "itself": lambda lab, tensor: lab.add_(tensor, 10.0),
    "through a view": lambda lab, tensor: lab.add_(lab.rows(tensor, 0, 2), 10.0),
}


def each(lab, tmp_path, submissions, limits):
    for policy in POLICIES:
        for moment in MOMENTS:
            where = f"{policy}, {limits}, {moment}"
            yield where, Scope(lab, policy, limits, moment, str(tmp_path), submissions)


def squared(lab, inner):
    return inner, lab.mul(inner, inner)


def own_output(lab, inner):
    """Return the output that its own operation saves."""
    out = lab.tanh(inner)
    return out, out


PROGRAMS = [(squared, "itself"), (squared, "through a view"), (own_output, "itself")]


@pytest.mark.parametrize(("program", "write"), PROGRAMS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_that_bumps_the_version_after_the_save_is_refused_for_ever_and_the_next_step_is_right(
    backend, limits, program, write, tmp_path, submissions
):
    lab, wrong = lab_of(backend), []

    def gradient(around):
        leaf, inner = values(lab)
        with around:
            loss = lab.sum(program(lab, inner)[1])
        lab.backward(loss)
        return lab.gradient(leaf)

    plain = gradient(nullcontext())
    for opens_first, (where, scope) in product((False, True), each(lab, tmp_path, submissions, limits)):
        leaf, inner = values(lab)
        with scope.stash:
            saved, loss = program(lab, inner)
            loss = lab.sum(loss)
        scope.reach()
        WRITES[write](lab, saved)
        if opens_first:
            scope.open()
        for _ in range(2):
            try:
                lab.backward(loss, retain_graph=True)
                wrong.append(f"{where}: not refused")
            except SavedTensorModifiedError as error:
                if "modified by an inplace operation" not in str(error):
                    wrong.append(f"{where}: {error}")
            if leaf.grad is not None:
                wrong.append(f"{where}: a gradient was written all the same")
            scope.open()
        if not where.startswith("quantize") and not np.array_equal(gradient(scope.stash), plain):
            wrong.append(f"{where}: the next step")
    assert wrong == []


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_after_drain_what_is_captured_is_immune(backend, limits, tmp_path, submissions):
    lab, wrong = lab_of(backend), []
    for policy in ("memory", "compress", "disk", "compress | disk"):
        for write in WRITES.values():
            scope = Scope(lab, policy, limits, "after", str(tmp_path), submissions)
            leaf, inner = values(lab)
            expected = (lab.bits(inner) * 2).astype("float32")
            with scope.stash as session:
                loss = lab.sum(lab.mul(inner, inner))
            session.drain()
            write(lab, inner)
            lab.backward(loss)
            if not np.array_equal(lab.gradient(leaf), expected):
                wrong.append(f"{policy}, {limits}")
    assert wrong == []


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_after_drain_what_is_kept_is_refused_all_the_same(backend, limits):
    lab = lab_of(backend)
    for policy, min_bytes in ((ts.Keep(), 0), (ts.Compress(min_ratio=1), 2**20)):
        _, inner = values(lab)
        stash = ts.stash(
            policy, framework=lab.name, min_bytes=min_bytes, limits=LIMITS[limits], budget=BUDGETS.get(limits)
        )
        with stash as session:
            loss = lab.sum(lab.mul(inner, inner))
        session.drain()
        lab.add_(inner, 1.0)
        with pytest.raises(SavedTensorModifiedError, match="modified by an inplace operation"):
            lab.backward(loss)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_before_the_save_and_a_write_into_what_is_not_needed_are_no_trouble(
    backend, limits, tmp_path, submissions
):
    lab, wrong = lab_of(backend), []

    def gradient(scope):
        leaf, inner = values(lab)
        lab.add_(inner, 1.0)
        with scope.stash if scope else nullcontext():
            loss = lab.sum(lab.mul(lab.tanh(inner), inner))
            shifted = lab.mul(inner, 2.0)
            if scope:
                scope.reach()
            lab.add_(shifted, 3.0)
        lab.backward(loss)
        return lab.gradient(leaf)

    plain = gradient(None)
    for where, scope in each(lab, tmp_path, submissions, limits):
        if not where.startswith("quantize") and not np.array_equal(gradient(scope), plain):
            wrong.append(where)
        scope.open()
    assert wrong == []
