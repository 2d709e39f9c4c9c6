"""Writes after the graph is made: into what nobody asks for, after a drain, and by backward itself."""

from __future__ import annotations

import pytest
import torch
from memory_programs import LIMITS, Moment, differences, moments, result
from submissions import Submissions

import tensorstash as ts
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory


@pytest.fixture
def submissions(monkeypatch) -> Submissions:
    return Submissions.watch(monkeypatch)


@pytest.mark.parametrize("change", ["modified", "freed"])
def test_what_nobody_asks_for_is_no_trouble_to_anything_later(change, tmp_path, submissions, same_bits):
    def program(moment: Moment):
        leaf = torch.randn(6, 20, requires_grad=True)
        with moment():
            inner = (leaf * 1.0).detach()
            unused = (leaf * inner).sum()
            moment.between()
            if change == "modified":
                inner.add_(1.0)
            else:
                inner.untyped_storage().resize_(0)
            del inner
            loss = (leaf * 1.0).tanh().sum()
            moment.between()
        with moment():
            loss = loss + (leaf * 1.0).exp().sum()
        loss.backward()
        return [leaf.grad, loss, unused]

    assert differences(program, str(tmp_path), submissions, same_bits) == []


@pytest.mark.parametrize("limits", LIMITS)
def test_a_drain_leaves_alone_what_its_owner_has_freed_for_now(limits):
    weight, held = torch.ones(6, 20, requires_grad=True), torch.full((6, 20), 2.0)
    storage, nbytes = held.untyped_storage(), held.nbytes
    stash = ts.stash(StoreIn(Memory()), framework="torch", min_bytes=0, limits=LIMITS[limits])
    with stash as session:
        out = weight * held
    storage.resize_(0)
    session.drain()
    storage.resize_(nbytes)
    held.data.fill_(2.0)
    out.sum().backward()
    assert torch.equal(weight.grad, torch.full((6, 20), 2.0))


class Writing(torch.autograd.Function):
    """Its backward writes into what it has saved, as kernels that reuse memory do."""

    @staticmethod
    def forward(ctx, x, bumps):
        ctx.save_for_backward(x)
        ctx.bumps = bumps
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = grad * x
        (x if ctx.bumps else x.data).mul_(2.0)
        return out, None


def written_in_backward(bumps, holds):
    def program(moment: Moment):
        leaf = torch.randint(-1, 2, (60, 20)).float().requires_grad_()  # which shrinks, so that every policy moves it
        with moment():
            inner = leaf * 1.0
            out = Writing.apply(inner, bumps)
            held = inner if holds else None
            del inner
            out = out.tanh().tanh()
            moment.between()
            out = out.tanh()
        gradients = []
        for _ in range(3):
            leaf.grad = None
            out.sum().backward(retain_graph=True)
            gradients.append(leaf.grad)
            moment.between()
        return [*gradients, held]

    return program


@pytest.mark.parametrize("bumps", [False, True], ids=["without a bump", "with a bump"])
def test_a_backward_that_writes_into_what_is_held_does_what_it_does_without_hooks(
    bumps, tmp_path, submissions, same_bits
):
    assert differences(written_in_backward(bumps, True), str(tmp_path), submissions, same_bits) == []


@pytest.mark.parametrize("bumps", [False, True], ids=["without a bump", "with a bump"])
def test_a_backward_that_writes_into_what_it_shares_changes_it_for_itself_alone(bumps, tmp_path, submissions):
    def program(moment: Moment):
        leaf = torch.randint(-1, 2, (60, 20)).float().requires_grad_()
        weight = torch.ones(60, 20, requires_grad=True)
        with moment():
            inner = leaf * 1.0
            other = weight * inner
            out = Writing.apply(inner, bumps)  # made last, so that its backward runs first
            del inner
            moment.between()
        (out.sum() + other.sum()).backward()
        return [weight.grad - leaf.detach()]

    for name, moment in moments(str(tmp_path), submissions):
        (difference,) = result(program, moment)
        assert not difference.any(), name


@pytest.mark.parametrize("bumps", [False, True], ids=["without a bump", "with a bump"])
def test_a_backward_that_writes_into_what_nobody_else_holds_does_the_same_at_every_moment(
    bumps, tmp_path, submissions, same_bits
):
    program = written_in_backward(bumps, False)
    found = {name: result(program, moment) for name, moment in moments(str(tmp_path), submissions)}
    assert {name: value for name, value in found.items() if isinstance(value, str)} == {}
    for name, value in found.items():
        assert same_bits(value[:3], [value[0]] * 3), name  # backward had memory of its own each time
