"""The guarantees about writes in place, each under every policy and limit and at every moment of a capture.

A write that bumps the version after the save is refused when the tensor is asked for, as autograd refuses it; after
``session.drain()`` what was saved is immune, unless it stays where it is. Neither depends on how far the workers are.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from gates import Gated
from submissions import Submissions

import tensorstash as ts
from tensorstash.errors import SavedTensorModifiedError
from tensorstash.policies import StoreIn
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import floats
from tests.samples import pairwise

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
"""What has been done of the captures when the forward pass is over."""

WRITES = {
    "itself": lambda lab, tensor: lab.add_(tensor, 10.0),
    "through a view": lambda lab, tensor: lab.add_(lab.rows(tensor, 0, 2), 10.0),
}

NBYTES = 8 * 8 * 4


def squared(lab, inner):
    """Return what is saved, and what is computed of it."""
    return inner, lab.mul(inner, inner)


def own_output(lab, inner):
    """Return the output that its own operation saves."""
    out = lab.tanh(inner)
    return out, out


PROGRAMS = {"squared": squared, "own output": own_output}


class Scope:
    """A session whose workers are stopped where a test wants them, and a lab."""

    def __init__(self, backend, policy, limits, moment, directory, monkeypatch):
        self.lab, self.gate, self.moment = lab_of(backend), Gated(), moment
        self._submissions = Submissions.watch(monkeypatch)
        waits = moment != "after" and LIMITS[limits].in_flight_bytes >= 8 * NBYTES
        if waits:  # else the forward pass itself would wait, too
            self.gate.puts.clear()
        made = POLICIES[policy](directory, self.gate)
        self.stash = ts.stash(made, framework=backend, min_bytes=0, limits=LIMITS[limits], budget=BUDGETS.get(limits))
        self.is_lossless = policy != "quantize"
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


def values(lab):
    """Return a leaf and something that was computed from it."""
    leaf = lab.tensor(floats(8, 8), requires_grad=True)
    return leaf, lab.mul(leaf, 1.0)


def cells(*dimensions):
    """Run a test in cells that pair all values of these with all of those."""
    return pytest.mark.parametrize("cell", pairwise(BACKENDS, *dimensions), ids=", ".join)


@cells(POLICIES, LIMITS, MOMENTS, PROGRAMS, WRITES, ("opened", "held"))
def test_a_write_that_bumps_the_version_after_the_save_is_refused_for_ever_and_the_next_step_is_right(
    cell, tmp_path, monkeypatch
):
    *under, program, write, gate = cell
    scope = Scope(*under, str(tmp_path), monkeypatch)
    lab, run = scope.lab, PROGRAMS[program]
    leaf, inner = values(lab)
    with scope.stash:
        saved, out = run(lab, inner)
        loss = lab.sum(out)
    scope.reach()
    WRITES[write](lab, saved)
    if gate == "opened":
        scope.open()
    for _ in range(2):
        with pytest.raises(SavedTensorModifiedError, match="modified by an inplace operation"):
            lab.backward(loss, retain_graph=True)
        assert leaf.grad is None, "a gradient was written all the same"
        scope.open()
    gradients = []
    for around in (nullcontext(), scope.stash):
        leaf, inner = values(lab)
        with around:
            loss = lab.sum(run(lab, inner)[1])
        lab.backward(loss)
        gradients.append(lab.gradient(leaf))
    assert np.array_equal(*gradients) or not scope.is_lossless


@cells(("memory", "compress", "disk", "compress | disk"), LIMITS, ("after",), WRITES)
def test_after_drain_what_is_captured_is_immune(cell, tmp_path, monkeypatch):
    *under, write = cell
    scope = Scope(*under, str(tmp_path), monkeypatch)
    lab = scope.lab
    leaf, inner = values(lab)
    expected = (lab.bits(inner) * 2).astype("float32")
    with scope.stash as session:
        loss = lab.sum(lab.mul(inner, inner))
    session.drain()
    WRITES[write](lab, inner)
    lab.backward(loss)
    assert np.array_equal(lab.gradient(leaf), expected)


@cells(("policy", "size"), LIMITS)
def test_after_drain_what_is_kept_is_refused_all_the_same(cell):
    backend, why, limits = cell
    lab = lab_of(backend)
    policy, min_bytes = (ts.Keep(), 0) if why == "policy" else (ts.Compress(min_ratio=1), 2**20)
    _, inner = values(lab)
    stash = ts.stash(policy, framework=backend, min_bytes=min_bytes, limits=LIMITS[limits], budget=BUDGETS.get(limits))
    with stash as session:
        loss = lab.sum(lab.mul(inner, inner))
    session.drain()
    lab.add_(inner, 1.0)
    with pytest.raises(SavedTensorModifiedError, match="modified by an inplace operation"):
        lab.backward(loss)


@cells([policy for policy in POLICIES if policy != "quantize"], LIMITS, MOMENTS)
def test_a_write_before_the_save_and_a_write_into_what_is_not_needed_are_no_trouble(cell, tmp_path, monkeypatch):
    scope = Scope(*cell, str(tmp_path), monkeypatch)
    lab, gradients = scope.lab, []
    for around in (nullcontext(), scope.stash):
        leaf, inner = values(lab)
        lab.add_(inner, 1.0)
        with around:
            loss = lab.sum(lab.mul(lab.tanh(inner), inner))
            shifted = lab.mul(inner, 2.0)
            if around is scope.stash:
                scope.reach()
            lab.add_(shifted, 3.0)
        lab.backward(loss)
        gradients.append(lab.gradient(leaf))
    scope.open()
    assert np.array_equal(*gradients)
