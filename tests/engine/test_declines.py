"""What does not shrink stays where it is, and is soon not even looked at; masks of floats among it are found."""

from importlib import import_module

import numpy as np
import pytest

import tensorstash as ts
from tensorstash import reference as ref
from tensorstash.codecs import Lossless, TwoValued
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
                y = lab.tanh(lab.mul(y, lab.mul(mask, 1.0)))  # so that nobody else holds it
            loss = lab.sum(y)
        lab.backward(loss)
    return lab.gradient(x)


@pytest.mark.parametrize("framework", BACKENDS)
@pytest.mark.parametrize("limits", [ts.Limits(encode="now"), ts.Limits(in_flight=0, ahead=0)])
def test_masks_of_floats_take_a_bit_each_and_what_is_dense_stays(framework, limits):
    lab = lab_of(framework)
    scope = ts.stash("pack_masks", framework=framework, min_bytes=0, limits=limits)
    assert_same_bits(masked(lab, scope), masked(lab, ts.stash("keep", framework=framework)), framework)
    stats = scope.stats()
    assert stats.stored["memory"].tensors == 4
    assert stats.stored["memory"].nbytes == 4 * (16 + 8 + 64 * 512 // 8)
    assert 0 < stats.declined.nbytes <= stats.stashed.nbytes - 4 * NBYTES


@pytest.mark.parametrize("policy", ["compress", "pack_masks"])
def test_a_kind_that_never_shrinks_is_looked_at_now_and_then(policy, monkeypatch):
    looks = []
    for codec in (Lossless, TwoValued):
        encode = codec.encode
        monkeypatch.setattr(codec, "encode", lambda *given, encode=encode: looks.append(1) or encode(*given))
    scope = ts.stash(policy, framework="reference", min_bytes=0, limits=ts.Limits(encode="now"))
    with pytest.warns(ts.TensorStashWarning, match="shrinks nothing"):
        train(scope)
    tensors = scope.stats().stashed.tensors
    assert scope.stats().declined.tensors == tensors >= 200
    assert 16 <= len(looks) <= tensors // 2


def test_views_whose_content_does_not_shrink_are_not_copied():
    scope = ts.stash("pack_masks", framework="reference", min_bytes=0, limits=ts.Limits(encode="now"))
    x = ref.tensor(floats(*SHAPE), requires_grad=True)
    with scope:
        loss = (x * 1.0)[:, 3:200].tanh().exp().transpose(0, 1).exp().sum()
        loss = loss + (x.tanh()[:, ::2] * x.exp()[:, ::2]).sum()
    loss.backward()
    assert scope.stats().declined.tensors
    assert not scope.stats().stored


def squared(view):
    result = view * view
    del view  # so that nobody but the graph holds it
    return result.sum()


def test_views_that_are_not_looked_at_are_not_read(monkeypatch):
    backend = import_module("tensorstash.backends.torch.backend").TorchBackend
    read, reads = backend.to_host, []
    monkeypatch.setattr(backend, "to_host", staticmethod(lambda *given: reads.append(1) or read(*given)))
    scope = ts.stash("compress", framework="torch", min_bytes=0, limits=ts.Limits(encode="now"))
    for _ in range(60):
        x = lab_of("torch").tensor(floats(64, 4096), requires_grad=True)
        with scope:
            loss = squared((x * 1.0)[:, ::2])
        loss.backward()
    assert scope.stats().declined.tensors == 60
    assert 16 <= len(reads) <= 30


def test_a_kind_that_begins_to_shrink_is_found_again():
    scope = ts.stash("compress", framework="reference", min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    dense, zeros = floats(*SHAPE), np.zeros(SHAPE, np.float32)
    stored = []
    for values in (dense, zeros):
        for _ in range(40):
            x = ref.tensor(values, requires_grad=True)
            with scope:
                loss = (x * 1.0).tanh().sum()
            loss.backward()
        stored.append(sum(tally.tensors for tally in scope.stats().stored.values()))
    assert stored[0] == 0
    assert stored[1] >= 10


def test_what_is_not_looked_at_costs_no_memory():
    scope = ts.stash("compress", framework="reference", min_bytes=0, limits=ts.Limits(encode="now"))
    masked(lab_of("reference"), scope, steps=10)
    stats = scope.stats()
    assert stats.peak_bytes <= 8 * (NBYTES // 32 + 64)
    assert stats.declined.tensors
