"""Hooks are in force for one block on one thread, and never disturb those of others."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors, disable_saved_tensors_hooks, saved_tensors_hooks

import tensorstash as ts
from tensorstash.errors import BackendError, SavedTensorModifiedError
from tests.frameworks.copying import Log


@pytest.fixture(autouse=True)
def no_hooks_left():
    yield
    with disable_saved_tensors_hooks("raises where some are in force"):
        pass


def work():
    x = torch.randn(3, requires_grad=True)
    return x.exp()


def test_hooks_that_somebody_else_took_away_are_an_error_and_take_nothing_away(backend):
    ours, theirs = Log(), Log()
    our_scope, their_scope = backend.hooks(ours.pack, ours.unpack), saved_tensors_hooks(theirs.pack, theirs.unpack)
    their_scope.__enter__()
    our_scope.__enter__()
    their_scope.__exit__(None, None, None)  # takes ours away: PyTorch does not look
    with pytest.raises(BackendError, match="no longer in force"):
        our_scope.__exit__(None, None, None)
    work()
    assert (ours.packs, theirs.packs) == (0, 1)
    their_scope.__exit__(None, None, None)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


@pytest.mark.parametrize("function", [torch.square, Square.apply], ids=["operator", "custom function"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_what_is_rebuilt_is_part_of_no_graph_whatever_is_on(pair, function, create_graph):
    rebuilt = []

    def unpack(packed):
        rebuilt.append((pair.unpack(packed), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return rebuilt[-1][0]

    x = torch.randn(3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), pair.backend.hooks(pair.pack, unpack):
        y = function(x * 1)
        torch.autograd.grad(y.sum(), x, create_graph=create_graph)
    assert rebuilt
    for tensor, recording, autocast in rebuilt:
        assert recording is create_graph
        assert autocast
        assert tensor.dtype is torch.float32
        assert not tensor.requires_grad
        assert torch.equal(tensor, x)


EDITS = {"an input": lambda x, y, z: x.add_(1.0), "a result": lambda x, y, z: y.mul_(3.0)}


def edited(edit, outer, inner):
    """A gradient of a program that modifies a saved tensor, which only PyTorch's own context allows."""
    start = torch.linspace(0.1, 1, 64).requires_grad_()
    with outer, inner:
        x = start * 2.0
        y = x * x
        z = y.exp()
        EDITS[edit](x, y, z)
        (z + y).sum().backward()
    return start.grad


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("policy", ["keep", "recompute | disk_spill"])
@pytest.mark.parametrize("edit", EDITS)
def test_mutation_that_pytorch_allows_is_right_or_around_a_stash_refused(edit, policy, is_inside):
    expected = edited(edit, allow_mutation_on_saved_tensors(), nullcontext())
    scopes = ts.stash(policy, framework="torch", min_bytes=0), allow_mutation_on_saved_tensors()
    try:
        got = edited(edit, *(scopes if is_inside else scopes[::-1]))
    except SavedTensorModifiedError:
        assert not is_inside
        assert edit != "a result"  # which nobody has saved
    else:
        assert torch.equal(got, expected)


def test_leaving_on_another_thread_is_an_error(backend):
    log = Log()
    scope = backend.hooks(log.pack, log.unpack)
    scope.__enter__()
    with ThreadPoolExecutor(1) as pool, pytest.raises(BackendError):
        pool.submit(scope.__exit__, None, None, None).result()
    work()
    assert log.packs == 1
    scope.__exit__(None, None, None)


def test_disabled_hooks_say_why(backend):
    log = Log()
    hooks = backend.hooks(log.pack, log.unpack)
    with pytest.raises(RuntimeError, match="not here"), disable_saved_tensors_hooks("not here"), hooks:
        work()
    with pytest.raises(RuntimeError, match="not here"), hooks, disable_saved_tensors_hooks("not here"):
        work()
    assert log.packs == 0
    with hooks:
        work()
    assert log.packs == 1
