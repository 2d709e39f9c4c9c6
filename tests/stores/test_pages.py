"""Buffers that come back by themselves, and those that must not."""

import ctypes
import gc
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from tensorstash.host.arrays import aligned_empty
from tensorstash.host.pages import BLOCK, HUGE_PAGE, mapped_pages, page_aligned
from tensorstash.host.pool import SMALLEST, PagePool, size_class
from tests.interrupts import interrupt
from tests.processes import locks_held

MIB = 2**20


@pytest.mark.parametrize("nbytes", [64 * 1024, MIB, 2 * MIB, 5 * MIB + 4096])
def test_pages_are_aligned_and_writable(nbytes):
    for pages in (mapped_pages(nbytes), page_aligned(nbytes), PagePool(0).take(nbytes)):
        assert pages.size == nbytes
        assert pages.ctypes.data % 4096 == 0
        pages[:] = 1
        assert pages.sum() == nbytes


@pytest.mark.parametrize(
    "viewed", [lambda pages: memoryview(pages[10:20].reshape(2, 5).T), lambda pages: torch.from_numpy(pages)[100:200]]
)
def test_a_buffer_is_used_again_only_when_the_last_view_is_gone(viewed):
    pool = PagePool(8 * MIB)
    first = pool.take(MIB)
    address = first.ctypes.data
    view = viewed(first)
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


def test_where_no_more_can_be_mapped_the_allocator_is_asked(monkeypatch):
    def refuse(nbytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("tensorstash.host.pool.mapped_pages", refuse)
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


def test_idle_memory_keeps_to_its_limit():
    for limit in (4, 0, 3):
        pool = PagePool(limit * MIB)
        held = [pool.take(MIB) for _ in range(10)]
        while held:
            held.pop()
            assert pool.idle_bytes <= limit * MIB
        assert pool.idle_bytes == limit * MIB


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tells by mincore which pages have memory")


def resident(pages):
    """Return which pages of an array have memory."""
    found = (ctypes.c_ubyte * (pages.size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(pages.size), found) == 0
    return np.frombuffer(found, np.uint8) & 1


@linux
def test_idle_buffers_of_other_sizes_make_room():
    pool = PagePool(64 * MIB)
    held = pool.take(20 * MIB)
    held[:] = 1
    del held
    large = pool.take(24 * MIB)
    assert not resident(large).any()
    assert pool.idle_bytes == 0


@linux
def test_small_buffers_of_different_sizes_keep_their_memory():
    pool = PagePool(64 * MIB)
    for again in (False, True):
        for nbytes in (100_000, 300_000, MIB):
            held = pool.take(nbytes)
            assert resident(held).all() == again
            held[:] = 1
            del held


@pytest.mark.parametrize("method", ["take", "give", "give back"])
def test_a_pool_counts_anew_after_an_interrupt_between_any_two_steps(method):
    """Raise at each line of the pool in turn, as a signal handler would."""
    line = interrupted = 0
    while interrupted == line:
        pool = PagePool(8 * MIB)
        held = [pool.take(nbytes) for nbytes in (MIB, MIB, 3 * MIB, 128 * 1024)]
        del held[2:]
        line += 1
        call = {"take": partial(pool.take, 3 * MIB), "give": held.pop, "give back": partial(pool.give_back, 0)}[method]
        interrupted += interrupt(call, "pool.py", line)
        held.clear()
        assert pool.take_stock()[0] == 0
        again = [pool.take(MIB) for _ in range(3)]
        for value, buffer in enumerate(again):
            buffer[:] = value
        assert [int(buffer[0]) for buffer in again] == [0, 1, 2]
        assert pool.take_stock()[0] == 3 * MIB
        pool.give_back(0)
        assert pool.idle_bytes == 0
    assert line > 10


def test_no_buffer_is_handed_out_twice_and_none_is_lost():
    pool, random = PagePool(32 * MIB), np.random.default_rng(1)
    held, most = {}, 0
    for value in range(400):
        if held and random.random() < 0.5:
            del held[random.choice(list(held))]
        else:
            nbytes = int(random.choice([100_000, MIB, 2 * MIB, 2 * MIB + 5, 6 * MIB, 7_000_001]))
            held[value] = pool.take(nbytes)
            held[value][:] = value % 251
        most = max(most, sum(size_class(buffer.size) for buffer in held.values()))
        assert pool.idle_bytes <= 32 * MIB
        assert pool.idle_bytes + sum(size_class(buffer.size) for buffer in held.values()) <= most + 16 * MIB
    for value, buffer in held.items():
        assert (buffer == value % 251).all()


def test_beside_the_most_that_was_in_use_nothing_is_idle():
    pool = PagePool(512 * MIB)
    held = [pool.take(8 * MIB) for _ in range(32)]
    held.pop()
    assert pool.idle_bytes == 0
    while held:
        held.pop()
        assert pool.idle_bytes + 8 * MIB * len(held) <= 256 * MIB * 7 / 8 + 16 * MIB
    assert pool.idle_bytes == 240 * MIB
    held = [pool.take(8 * MIB) for _ in range(32)]
    assert pool.idle_bytes == 0


def test_a_buffer_that_comes_back_inside_a_call_does_not_wait():
    pool = PagePool(4 * MIB)
    held = pool.take(MIB)
    address = held.ctypes.data
    with locks_held():
        del held
        assert pool.idle_bytes == 0
    assert pool.take(MIB).ctypes.data == address


def test_threads_never_share_a_buffer():
    pool = PagePool(4 * MIB)

    def keeps(value):
        for _ in range(300):
            taken = pool.take(128 * 1024)
            taken[:] = value
            if not (taken == value).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(keeps, range(4)))
    gc.collect()
    assert pool.idle_bytes <= 2 * 4 * 128 * 1024  # each thread holds one while it takes the next


@pytest.mark.skipif(sys.platform == "win32", reason="has no huge pages")
def test_large_mappings_begin_with_a_huge_page():
    # Several at once, since one may lie well by chance.
    pages = [mapped_pages(2 * HUGE_PAGE + BLOCK) for _ in range(8)]
    assert {array.ctypes.data % HUGE_PAGE for array in pages} == {0}
