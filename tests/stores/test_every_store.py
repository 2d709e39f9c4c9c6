"""What every store does, whatever it is made of."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import pytest
from store_kinds import PIECE

from tensorstash.errors import SlotGoneError, StoreError, StoreFullError
from tensorstash.host.arrays import borrowed
from tensorstash.stores import Memory

SIZES = [0, 1, 63, 4095, 4096, 4097, 100_000, 2**20 + 8, PIECE, PIECE + 1, 2 * PIECE + 12_345]


@pytest.mark.parametrize("nbytes", SIZES)
def test_bytes_come_back(store, payload, nbytes):
    data = payload(nbytes)
    found = store.get(store.put(data.copy()))
    assert found.dtype == np.uint8
    assert found.shape == (nbytes,)
    assert np.array_equal(found, data)


def test_many_records_of_many_sizes_live_side_by_side(store, payload):
    slots = [store.put(payload(nbytes, seed)) for seed, nbytes in enumerate(SIZES)]
    assert len(set(slots)) == len(SIZES)
    for seed, (slot, nbytes) in reversed(list(enumerate(zip(slots, SIZES, strict=True)))):
        assert np.array_equal(store.get(slot), payload(nbytes, seed))


def test_a_source_may_start_at_any_address_and_be_borrowed(store, payload):
    whole = payload(PIECE + 5_000)
    for start in (1, 16, 64, 512):
        data = borrowed(whole[start:])
        assert np.array_equal(store.get(store.put(data)), data)


def test_what_is_not_retained_may_change_after_put(store, payload):
    data = payload(10_000)
    expected = data.copy()
    slot = store.put(data)
    if not store.retains:
        data[:] = 0
    assert np.array_equal(store.get(slot), expected)


def test_every_get_gives_the_same_and_one_cannot_harm_the_next(store, payload):
    data = payload(70_000)
    slot = store.put(data.copy())
    for _ in range(3):
        found = store.get(slot)
        assert np.array_equal(found, data)
        if found.flags.writeable:
            found[:] = 0
        else:
            with pytest.raises(ValueError, match="read-only"):
                found[0] = 0


def test_a_private_result_outlives_slot_and_store(store, payload):
    data = payload(3 * 2**20)
    slot = store.put(data.copy())
    found = store.get(slot)
    part = store.get(slot)[1_000:2_000]
    store.delete(slot)
    others = [store.get(store.put(payload(3 * 2**20, seed))) for seed in range(1, 4)]
    store.close()
    assert np.array_equal(found, data)
    assert np.array_equal(part, data[1_000:2_000])
    assert len(others) == 3


def test_a_private_result_is_aligned_for_any_kernel(store, payload):
    for nbytes in (1, 5_000, 100_000, 3 * 2**20):
        found = store.get(store.put(payload(nbytes)))
        if found.flags.writeable:
            assert found.ctypes.data % 64 == 0


def test_a_deleted_slot_is_gone_and_the_others_stay(store, payload):
    kept, dropped = store.put(payload(5_000, 1)), store.put(payload(5_000, 2))
    store.delete(dropped)
    store.delete(dropped)
    for _ in range(2):
        with pytest.raises(SlotGoneError):
            store.get(dropped)
        replacement = store.put(payload(5_000, 3))
        assert np.array_equal(store.get(replacement), payload(5_000, 3))
    assert np.array_equal(store.get(kept), payload(5_000, 1))


def test_a_slot_of_another_store_is_refused(open_store, payload):
    one, other = open_store(), open_store()
    slot = other.put(payload(100))
    one.put(payload(100))
    with pytest.raises(SlotGoneError):
        one.get(slot)
    with pytest.raises(SlotGoneError):
        one.get("no slot at all")
    one.delete("no slot at all")
    one.close()
    assert np.array_equal(other.get(slot), payload(100))
    other.close()


def test_a_closed_store_gives_nothing_and_takes_nothing(store, payload):
    slot = store.put(payload(100))
    store.close()
    store.close()
    with pytest.raises(SlotGoneError):
        store.get(slot)
    with pytest.raises(StoreError):
        store.put(payload(100))
    store.delete(slot)
    store.delete(slot)


def test_dropping_the_last_reference_closes_the_store_without_the_cyclic_collector(
    open_store, payload, open_descriptors
):
    before = open_descriptors()
    gc.disable()
    try:
        opened = open_store()
        slot = opened.put(payload(3 * PIECE))
        found = opened.get(slot)
        with pytest.raises(SlotGoneError):
            opened.get("no slot at all")
        del opened
        assert open_descriptors() == before
        assert np.array_equal(found, payload(3 * PIECE))
    finally:
        gc.enable()


def test_a_full_store_says_so_and_goes_on(open_store, payload):
    store = open_store(64 * 4096)
    slots = [store.put(payload(5 * 4096, seed)) for seed in range(12)]
    for too_much in (5 * 4096, 65 * 4096):
        with pytest.raises(StoreFullError):
            store.put(payload(too_much))
    for seed, slot in enumerate(slots):
        assert np.array_equal(store.get(slot), payload(5 * 4096, seed))
    for seed in range(2):
        slots.append(store.put(payload(2 * 4096, seed)))
    for _ in range(3):
        store.delete(slots.pop())
    replacement = store.put(payload(5 * 4096, 99))
    assert np.array_equal(store.get(replacement), payload(5 * 4096, 99))
    store.close()


def test_space_is_used_again_without_end(open_store, payload):
    store = open_store(64 * 4096)
    for step in range(200):
        slots = [store.put(payload(nbytes * 4096)) for nbytes in ((1, 7, 3, 9) if step % 2 else (8, 2, 9))]
        for slot in slots if step % 3 else reversed(slots):
            store.delete(slot)
    store.close()


def test_threads_may_do_everything_at_once(store, payload):
    def work(seed):
        for step in range(15):
            data = payload(seed * 40_000 + step, seed)
            slot = store.put(data.copy())
            assert np.array_equal(store.get(slot), data)
            assert np.array_equal(store.get(slot), data)
            store.delete(slot)
        return seed

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == list(range(8))


def test_threads_may_read_one_slot_at_once(store, payload):
    data = payload(3 * PIECE)
    slot = store.put(data.copy())
    with ThreadPoolExecutor(4) as threads:
        assert all(np.array_equal(found, data) for found in threads.map(lambda _: store.get(slot), range(8)))


def test_threads_may_read_several_slots_at_once(store, payload):
    slots = [store.put(payload(300_000, seed)) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(store.get, slots * 20))
    assert all(np.array_equal(array, payload(300_000, number % 8)) for number, array in enumerate(found))


def test_close_waits_for_nobody_and_harms_nobody(open_store, payload):
    store, ready = open_store(), threading.Barrier(5)
    data = payload(2 * PIECE)
    slot = store.put(data.copy())

    def read():
        ready.wait()
        try:
            return np.array_equal(store.get(slot), data)
        except SlotGoneError:
            return True

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(4)]
        ready.wait()
        store.close()
        assert all(reader.result() for reader in readers)


def test_finalizers_may_delete_at_any_line_of_any_method(open_store, payload):
    """Delete one slot at each line that runs inside a store, as the garbage collector could."""
    store = open_store(2**22)
    doomed = [store.put(payload(3_000, seed)) for seed in range(400)]
    lines = 0

    def on_line(frame: FrameType, event: str, arg: object) -> object:
        nonlocal lines
        if "stores" not in frame.f_code.co_filename or frame.f_code.co_name == "delete":
            return None
        if event == "line":
            lines += 1
            if doomed:
                store.delete(doomed.pop())
        return on_line

    previous = sys.gettrace()
    sys.settrace(on_line)
    try:
        slots = [store.put(payload(20_000, seed)) for seed in range(12)]
        found = [store.get(slot) for slot in slots]
    finally:
        sys.settrace(previous)
    assert lines > 50
    assert all(np.array_equal(array, payload(20_000, seed)) for seed, array in enumerate(found))
    for slot in (*slots, *doomed):
        store.delete(slot)
    full = store.put(payload(2**20))
    assert np.array_equal(store.get(full), payload(2**20))
    store.close()


def test_delete_does_not_wait_for_a_call_that_is_running(store, payload):
    """Delete from another thread while this one stands inside each line of put and get."""
    slots = [store.put(payload(100, seed)) for seed in range(300)]
    stuck: list[int] = []

    def on_line(frame: FrameType, event: str, arg: object) -> object:
        if "stores" not in frame.f_code.co_filename:
            return None
        if event == "line" and slots:
            helper = threading.Thread(target=store.delete, args=(slots.pop(),), daemon=True)
            helper.start()
            helper.join(10)
            if helper.is_alive():
                stuck.append(frame.f_lineno)
        return on_line

    previous = sys.gettrace()
    sys.settrace(on_line)
    try:
        store.get(store.put(payload(20_000)))
    finally:
        sys.settrace(previous)
    assert not stuck


def test_a_slot_of_memory_that_is_lost_frees_its_bytes(payload):
    store = Memory().open()
    slot = store.put(payload(4_000))
    assert store.used_bytes == 4_000
    del slot  # as when an interrupt comes before anybody has it
    assert store.used_bytes == 0


def test_memory_can_be_filled_to_the_last_byte_again():
    store = Memory(budget=10).open()
    store.delete(store.put(np.zeros(6, np.uint8)))
    slot = store.put(np.zeros(10, np.uint8))
    assert store.get(slot).size == store.used_bytes == 10


def test_a_slot_that_goes_while_a_memory_store_closes_goes_in_silence(payload):
    store, slots = Memory().open(), []
    data = payload(500)
    weakref.finalize(data, slots.clear)
    first = store.put(data)
    del data
    slots += [store.put(payload(500)) for _ in range(2)]
    store.close()
    assert not slots
    with pytest.raises(SlotGoneError):
        store.get(first)
