"""What several operations have saved is given to all of them without a copy, as long as none writes into it."""

import pytest
import torch
from inside import session_of

import tensorstash as ts

LIMITS = ts.Limits(in_flight=0, ahead="1MiB")


def saved(policy):
    """Return a stash, and the handles of three layouts of one memory, of which nobody has a tensor any more."""
    with ts.stash(policy, framework="torch", min_bytes=0, limits=LIMITS) as session:
        tensor = dense()
        handles = [session_of(session).pack(view) for view in (tensor, tensor.transpose(0, 1), tensor.view(-1))]
        del tensor
    session.drain()
    return session, handles


def dense():
    return torch.rand(40, 30, generator=torch.Generator().manual_seed(0)) + 0.1


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize("policy", ["compress", "disk_spill"])
def test_all_layouts_of_a_memory_come_back_in_one(policy):
    session, handles = saved(policy)
    back = [session_of(session).unpack(handle) for handle in handles]
    for tensor, view in zip(back, (dense(), dense().transpose(0, 1), dense().view(-1)), strict=True):
        assert torch.equal(tensor, view)
        assert tensor.stride() == view.stride()
        assert tensor._base is None
        assert not tensor.requires_grad
    assert len(storages(back)) == 1


class Scribble(torch.autograd.Function):
    """Doubles, and writes into what it has saved when backward has read it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        kept = x.clone()
        x.numpy()[...] = 7  # which no version counts
        return gradient * 2 + 0 * kept


@pytest.mark.parametrize("policy", ["compress", "disk_spill"])
def test_a_function_that_writes_into_what_it_gets_changes_nobody_elses(policy):
    def gradient(scope):
        x = dense().requires_grad_()
        with scope:
            y = x * 1.5
            loss = (y * y).sum() + y.t().square().sum()
            loss = loss + Scribble.apply(y).sum()  # whose backward is the first
            del y
        scope.drain()
        loss.backward()
        return x.grad

    expected = 1.5 * (4 * 1.5 * dense() + 2)
    given = gradient(ts.stash(policy, framework="torch", min_bytes=0, limits=LIMITS))
    torch.testing.assert_close(given, expected)


def test_parts_with_lazy_flags_are_copied_and_have_them():
    with ts.stash("compress", framework="torch", min_bytes=0, limits=LIMITS) as session:
        tensor = torch.complex(dense(), dense())
        handles = [session_of(session).pack(view) for view in (tensor, tensor.conj())]
        del tensor
    session.drain()
    plain, conjugate = (session_of(session).unpack(handle) for handle in handles)
    assert conjugate.is_conj()
    assert torch.equal(plain.conj(), conjugate)
    assert len(storages([plain, conjugate])) == 2
