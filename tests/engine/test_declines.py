"""What does not shrink stays where it is; masks of floats among it are found."""

import numpy as np
import pytest

import tensorstash as ts
from tensorstash import reference as ref
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import assert_same_bits, floats

SHAPE = (64, 512)
NBYTES = 64 * 512 * 4


def train(scope):
    for _ in range(20):
        y = ref.tensor(floats(*SHAPE), requires_grad=True)
        with scope:
            for _ in range(10):
                y = (y * 0.9).tanh()
        y.sum().backward()


def masked(lab, scope, steps=1, layers=4):
    """Multiply dense floats by masks of two values, as dropout does on the CPU; return the gradient."""
    chosen = np.random.default_rng(0).random((layers, *SHAPE)) < 0.9
    masks = [lab.tensor(np.where(one, np.float32(1 / 0.9), np.float32(0))) for one in chosen]
    for _ in range(steps):
        x = lab.tensor(floats(*SHAPE), requires_grad=True)
        with scope:
            y = x
            for mask in masks:
                y = (y * (mask * 1.0)).tanh()  # so that nobody else holds it
            loss = y.sum()
        lab.backward(loss)
    return lab.gradient(x)


@pytest.mark.parametrize("framework", BACKENDS)
@pytest.mark.parametrize("limits", [ts.Limits(), ts.Limits(in_flight=0, ahead=0)])
def test_masks_of_floats_take_a_bit_each_and_what_is_dense_stays(framework, limits):
    lab = lab_of(framework)
    scope = ts.stash("pack_masks", framework=framework, min_bytes=0, limits=limits)
    assert_same_bits(masked(lab, scope), masked(lab, ts.stash("keep", framework=framework)), framework)
    stats = scope.stats()
    assert stats.stored["memory"].tensors == 4
    assert stats.stored["memory"].nbytes == 4 * (8 + 64 * 512 // 8)
    assert 0 < stats.declined.nbytes <= stats.stashed.nbytes - 4 * NBYTES


def test_views_whose_content_does_not_shrink_are_not_copied():
    scope = ts.stash("pack_masks", framework="reference", min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    x = ref.tensor(floats(*SHAPE), requires_grad=True)
    with scope:
        loss = (x * 1.0)[:, 3:200].tanh().exp().T.exp().sum()
        loss = loss + (x.tanh()[:, ::2] * x.exp()[:, ::2]).sum()
    loss.backward()
    assert scope.stats().declined.tensors
    assert not scope.stats().stored


@pytest.mark.parametrize("policy", ["compress", "pack_masks"])
def test_a_kind_that_never_shrinks_costs_no_memory_and_is_told(policy):
    scope = ts.stash(policy, framework="reference", min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    with pytest.warns(ts.TensorStashWarning, match="shrinks nothing"):
        train(scope)
    stats = scope.stats()
    assert stats.declined == stats.stashed
    assert stats.declined.tensors >= 200
    assert not stats.stored
    assert stats.peak_bytes == 0


def test_a_kind_that_begins_to_shrink_is_found():
    scope = ts.stash("compress", framework="reference", min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    dense, zeros = floats(*SHAPE), np.zeros(SHAPE, np.float32)
    for values, stored in ((dense, 0), (zeros, 4)):
        for _ in range(4):
            x = ref.tensor(values, requires_grad=True)
            with scope:
                loss = (x * 1.0).tanh().sum()
            loss.backward()
        assert sum(tally.tensors for tally in scope.stats().stored.values()) >= stored, values[0, 0]
        assert stored or not scope.stats().stored
