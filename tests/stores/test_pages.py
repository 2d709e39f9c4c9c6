"""Buffers that come back by themselves, and those that must not."""

import gc
import threading

import numpy as np
import pytest

from tensorstash.buffers import aligned_empty
from tensorstash.pages import SMALLEST, PagePool, mapped_pages, page_aligned, size_class

MIB = 2**20


@pytest.mark.parametrize("nbytes", [64 * 1024, MIB, 2 * MIB, 5 * MIB + 4096])
def test_pages_are_aligned_and_writable(nbytes):
    for pages in (mapped_pages(nbytes), page_aligned(nbytes), PagePool(0).take(nbytes)):
        assert pages.size == nbytes
        assert pages.ctypes.data % 4096 == 0
        pages[:] = 1
        assert pages.sum() == nbytes


def test_a_buffer_is_used_again_only_when_the_last_view_is_gone():
    pool = PagePool(8 * MIB)
    first = pool.take(MIB)
    address = first.ctypes.data
    view = memoryview(first[10:20].reshape(2, 5).T)
    del first
    assert pool.take(MIB).ctypes.data != address
    del view
    assert address in {taken.ctypes.data for taken in (pool.take(MIB), pool.take(MIB))}


def test_similar_sizes_share_buffers():
    pool = PagePool(8 * MIB)
    held = pool.take(MIB + 1)
    address = held.ctypes.data
    del held
    assert pool.take(MIB + 50_000).ctypes.data == address
    for nbytes in (SMALLEST, 100_001, MIB, 3 * MIB + 5, 2**30 + 1):
        assert nbytes <= size_class(nbytes) <= nbytes * 17 / 16 + 4096


def test_after_a_fork_in_the_middle_of_a_call_the_child_gets_fresh_pages():
    pool = PagePool(8 * MIB)
    held = pool.take(MIB)
    del held
    with pool._lock:  # as a thread of the parent held it, which the child does not have
        assert pool.take(MIB).size == MIB


def test_where_no_more_can_be_mapped_the_allocator_is_asked(monkeypatch):
    def refuse(nbytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("tensorstash.pages.mapped_pages", refuse)
    taken = PagePool(8 * MIB).take(MIB)
    assert (taken.size, taken.ctypes.data % 4096) == (MIB, 0)


def test_what_is_made_here_is_pooled_and_takes_direct_transfers():
    before = aligned_empty(MIB)
    address = before.ctypes.data
    del before
    again = aligned_empty(MIB)
    assert again.ctypes.data == address
    assert address % 4096 == 0
    assert all(aligned_empty(nbytes, 16).ctypes.data % 64 == 16 for nbytes in (100, MIB))


def test_what_other_libraries_hold_is_not_used_again():
    torch = pytest.importorskip("torch")
    pool = PagePool(8 * MIB)
    tensor = torch.from_numpy(pool.take(MIB))[100:200]
    tensor.fill_(7)
    other = pool.take(MIB)
    other[:] = 9
    assert tensor.eq(7).all()
    del tensor
    assert pool.idle_bytes == MIB


def test_idle_memory_keeps_to_its_limit_and_the_unused_sizes_go_first():
    pool = PagePool(4 * MIB)
    old = pool.take(2 * MIB)
    del old
    held = [pool.take(MIB) for _ in range(6)]
    while held:
        held.pop()
        assert pool.idle_bytes <= 4 * MIB
    assert pool.idle_bytes == 4 * MIB
    assert pool._reuse(2 * MIB) is None


def test_sizes_that_never_come_again_take_no_more_than_was_in_use_at_once():
    pool, sizes = PagePool(64 * MIB), np.random.default_rng(0).integers(2 * MIB, 8 * MIB, 200)
    held, most = [], 0
    for size in sizes:
        held = held[-2:]
        held.append(pool.take(int(size)))
        in_use = sum(taken.nbytes for taken in held)
        most = max(most, in_use)
        assert in_use + pool.idle_bytes <= most * 9 / 8 + 3 * 4096


def test_a_buffer_that_comes_back_inside_a_call_does_not_wait():
    pool = PagePool(4 * MIB)
    held = pool.take(MIB)
    with pool._lock:
        del held
    assert pool.idle_bytes == 0
    assert np.array_equal(pool.take(MIB).shape, (MIB,))


def test_threads_never_share_a_buffer():
    pool, wrong = PagePool(4 * MIB), []

    def work(value):
        for _ in range(300):
            taken = pool.take(128 * 1024)
            taken[:] = value
            if not (taken == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert pool.idle_bytes <= 2 * 4 * 128 * 1024  # each thread holds one while it takes the next
