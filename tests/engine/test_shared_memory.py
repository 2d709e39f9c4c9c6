"""What shares a memory comes back in one, where none disturbs another: layouts, and parts of a split."""

import threading
from contextlib import nullcontext

import pytest
import torch
from inside import session_of

import tensorstash as ts
from tensorstash.engine import sender, shared_span
from tensorstash.host import arrays
from tensorstash.host.pool import PagePool
from tensorstash.spec import ALIGNMENT
from tensorstash.testing.labs import lab_of

SPILL, LOSSY = ts.DiskSpill(), ts.Quantize(8)


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


def saved(parts, policy=SPILL):
    """Return what unpacks, and a handle for each of ``parts``, whose bytes have left."""
    with ts.stash(policy, framework="torch", min_bytes=0) as session:
        handles = [session_of(session).pack(part) for part in parts]
        for handle in handles:
            if not isinstance(handle, tuple):  # which stands for what is kept
                handle.is_read_by("any")
    session.drain()
    return session_of(session).unpack, handles


def table(rows=40, columns=24, dtype=torch.float32):
    return torch.arange(rows * columns).to(dtype).view(rows, columns)


def assert_same(tensor, expected):
    assert torch.equal(tensor, expected)
    assert tensor.stride() == expected.stride()
    assert tensor.dtype == expected.dtype
    assert tensor.data_ptr() % ALIGNMENT == expected.data_ptr() % ALIGNMENT
    assert not tensor.requires_grad
    assert tensor._base is None


SPLITS = {
    "every other": lambda x: (x[:, ::2], x[:, 1::2]),
    "chunks": lambda x: x.chunk(3, 1),
    "unequal": lambda x: x.split([5, 12, 7], 1),
    "with a hole": lambda x: (x[:, 2:5], x[:, 20:23]),
    "heads": lambda x: [part.unflatten(1, (2, -1)).transpose(0, 1) for part in x.chunk(3, 1)],
    "channels": lambda x: x.view(5, 8, 24).chunk(4, 1),
    "halves of thirds": lambda x: [half for part in x.chunk(3, 1) for half in part.chunk(2, 1)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_parts_come_back_in_one_memory(split, dtype):
    x = table(dtype=dtype)
    parts = split(x)
    unpack, handles = saved(parts)
    back = [unpack(handle) for handle in reversed(handles)][::-1]
    for tensor, part in zip(back, parts, strict=True):
        assert_same(tensor, part)
    assert len({storage(tensor) for tensor in back}) == 1
    assert back[0].untyped_storage().nbytes() <= x.nbytes + ALIGNMENT
    if dtype.is_floating_point:
        unpack, handles = saved(parts, LOSSY)
        back = [unpack(handle) for handle in handles]
        assert len({storage(tensor) for tensor in back}) == 1
        for tensor, part in zip(back, parts, strict=True):
            alone, (handle,) = saved([part], LOSSY)
            assert torch.equal(tensor, alone(handle))


@pytest.mark.parametrize("policy", [ts.Compress(min_ratio=1), SPILL], ids=["compress", "spill"])
def test_all_layouts_of_a_memory_come_back_in_one_and_those_with_other_flags_in_their_own(policy):
    x = table(dtype=torch.complex64)
    views = x, x.transpose(0, 1), x.view(-1), x.conj()
    unpack, handles = saved(views, policy)
    back = [unpack(handle) for handle in handles]
    for tensor, view in zip(back, views, strict=True):
        assert_same(tensor, view)
        assert tensor.is_conj() == view.is_conj()
    assert [storage(tensor) == storage(back[0]) for tensor in back] == [True, True, True, False]


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
        x = table().requires_grad_()
        with scope:
            y = x * 1.5
            loss = (y * y).sum() + y.t().square().sum()
            loss = loss + Scribble.apply(y).sum()  # whose backward is the first
            del y
        scope.drain()
        loss.backward()
        return x.grad

    expected = 1.5 * (4 * 1.5 * table() + 2)
    given = gradient(ts.stash(policy, framework="torch", min_bytes=0, limits=ts.Limits(in_flight=0)))
    torch.testing.assert_close(given, expected)


APART = {
    "unaligned": lambda x: x.view(-1)[3 : 3 + 39 * 24].view(39, 24).chunk(2, 1),
    "cropped": lambda x: [part[:, :7] for part in x.view(4, 10, 24).chunk(3, 2)][:2],
    "overlapping": lambda x: (x[:, :10], x[:, 5:15]),
    "one inside another": lambda x: (x[:, :10], x[:, 3:4]),
    "runs of memory": lambda x: (x[:20], x[20:]),
    "a run and a part": lambda x: (x[:, :10], x[:1]),
    "other periods": lambda x: (x[:, :10], x.view(-1, 48)[:, 20:30]),
    "other lengths": lambda x: (x[:, :10], x[:-1, 10:]),
    "far apart": lambda x: (x[:4, :10], x[30:34, 10:20]),
    "other types": lambda x: (x[:, :10], x.view(torch.int32)[:, 10:]),
    "alone": lambda x: (x[:, :10], table()[:, 10:]),
}


@pytest.mark.parametrize("policy", [SPILL, LOSSY], ids=["lossless", "lossy"])
@pytest.mark.parametrize("split", APART.values(), ids=APART)
def test_what_is_not_known_to_be_apart_has_memory_of_its_own(split, policy):
    unpack, handles = saved(split(table()), policy)
    back = [unpack(handle) for handle in handles]
    assert storage(back[0]) != storage(back[1])
    alone = [saved([part], policy) for part in split(table())]
    for tensor, (unpack_one, (handle,)) in zip(back, alone, strict=True):
        assert torch.equal(tensor, unpack_one(handle))
        assert tensor.untyped_storage().nbytes() == unpack_one(handle).untyped_storage().nbytes()


def test_parts_of_different_versions_have_memory_of_their_own():
    x = table()
    with ts.stash(SPILL, framework="torch", min_bytes=0) as session:
        first = session_of(session).pack(x[:, :10])
        session.drain()
        x.mul_(2)
        second = session_of(session).pack(x[:, 10:])
    session.drain()
    one, other = session_of(session).unpack(first), session_of(session).unpack(second)
    assert storage(one) != storage(other)
    assert torch.equal(one, table()[:, :10])
    assert torch.equal(other, x[:, 10:])


def test_whoever_writes_into_a_part_changes_no_other():
    parts = table().chunk(3, 1)
    unpack, handles = saved(parts)
    query, key = (unpack(handle) for handle in handles[:2])
    version = lab_of("torch").backend.version(key)
    query.fill_(7)
    value, again = unpack(handles[2]), unpack(handles[0])
    assert lab_of("torch").backend.version(key) == version
    assert storage(query) == storage(key) == storage(value) != storage(again)
    for tensor, part in zip((again, key, value), parts, strict=True):
        assert_same(tensor, part)
    key.numpy()[...] = 7  # which no version counts
    assert_same(again, parts[0])
    assert_same(value, parts[2])


def test_the_memory_goes_with_the_last_part(no_gc):
    unpack, handles = saved(table().chunk(3, 1))
    one = unpack(handles[0])
    span = handles[0].content.span
    other = unpack(handles[1])
    del one
    assert span.memory() is not None
    third = unpack(handles[2])
    del other
    assert span.memory() is not None
    del third
    assert span.memory() is None
    again = unpack(handles[1])
    span = handles[1].content.span
    assert torch.equal(again, table().chunk(3, 1)[1])
    del handles, unpack
    assert span.memory() is not None
    del again
    assert span.memory() is None


def test_a_memory_is_not_begun_while_another_is(monkeypatch):
    parts = table().chunk(2, 1)
    unpack, handles = saved(parts)
    back = []
    other = threading.Thread(target=lambda: back.append(unpack(handles[1])))
    begin = shared_span.aligned_empty

    def meanwhile(*arguments):
        if other.ident is None:
            other.start()
            other.join(0.3)  # which it is only where nothing keeps it from beginning one too
        return begin(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shared_span, "aligned_empty", meanwhile)
        back.append(unpack(handles[0]))
        other.join()
    assert storage(back[0]) == storage(back[1])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own, on its way into jvp
@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap"])
def test_parts_are_asked_for_inside_a_transform(transform):
    weight, direction = torch.randn(8, 12, requires_grad=True), torch.randn(2, 8, 4)

    def run(stash):
        with stash as session:
            first, second, third = (weight * 2.0).chunk(3, 1)
            product = first * second * third
        if session is not None:
            session.drain()

        def backward(v):
            return torch.autograd.grad(product, weight, v, retain_graph=True)[0]

        if transform == "jvp":
            return torch.func.jvp(backward, (direction[0],), (direction[1],))[1]
        if transform == "grad":
            return torch.func.grad(lambda v: backward(v).square().sum())(direction[0])
        return torch.func.vmap(backward)(direction)

    assert torch.equal(run(ts.stash(SPILL, framework="torch", min_bytes=0)), run(nullcontext()))


def test_parts_count_among_what_is_read_ahead_until_backward_lets_go_of_them():
    parts = table(rows=400).chunk(3, 1)
    unpack, handles = saved(parts)
    prefetcher = handles[0].state.prefetcher
    for handle in handles:
        assert handle.content.prefetch()
    nbytes = sum(part.nbytes for part in parts)
    assert prefetcher.budget.used == 2 * nbytes, "as they are read, and in their place"
    back = [unpack(handle) for handle in handles]
    assert prefetcher.budget.used == nbytes
    del back
    assert prefetcher.budget.used == 0


def test_what_several_ask_for_counts_until_the_last_lets_go_of_it():
    x = table(rows=400)
    unpack, handles = saved([x, x])
    budget = handles[0].state.prefetcher.budget
    back = [unpack(handle) for handle in handles]
    assert storage(back[0]) == storage(back[1])
    assert budget.used == x.nbytes
    del back[0]
    assert budget.used == x.nbytes
    del back
    assert budget.used == 0


@pytest.fixture
def pool(monkeypatch):
    pool = PagePool(2**28)
    monkeypatch.setattr(arrays, "POOL", pool)
    monkeypatch.setattr(sender, "POOL", pool)
    return pool


def test_a_step_begins_without_the_buffers_that_only_backward_needed(pool):
    x = torch.randn(2**19, requires_grad=True)
    with ts.stash(SPILL, framework="torch", limits=ts.Limits(in_flight=0)) as stash:
        loss = (x.exp() * x.sin()).sum()
    loss.backward()
    assert pool.idle_bytes >= 2 * x.nbytes
    with stash:
        assert pool.idle_bytes <= x.nbytes, "as many as were written one by one"


def test_a_step_begins_with_as_many_buffers_as_saving_has_used(pool):
    x = torch.randn(2**19, requires_grad=True)
    with ts.stash("store_in:store=memory", framework="torch", limits=ts.Limits(in_flight=0)) as stash:
        loss = x.exp().exp().exp().sum()
    used, _ = pool.take_stock()
    assert used >= 2 * x.nbytes
    loss.backward()
    del loss
    with stash:
        assert pool.idle_bytes >= used


def test_no_more_is_idle_than_a_step_saves_or_payloads_take(pool):
    x = torch.randn(2**19, requires_grad=True)
    limits = ts.Limits(in_flight=0, ahead=0)
    with ts.stash("compress:min_ratio=1.1", framework="torch", limits=limits) as stash:
        loss = x.exp().sum()
    stats = stash.stats()
    assert 0 < stats.saved_bytes < stats.live.nbytes < x.nbytes
    loss.backward()
    del loss
    assert pool.idle_bytes <= 17 / 16 * stats.live.nbytes, "what is decoded is as large as the tensor"
