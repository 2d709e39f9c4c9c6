"""Small payloads that are one record of a store: written together, read together, and each on its own for who asks."""

import os
import random
import threading
from weakref import ref as ref_to

import numpy as np
import pytest
import torch
from gates import Gated
from timeouts import set_timeout, settle

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.engine.payloads.bundles import Bundle
from tensorstash.errors import CorruptDataError, SavedTensorModifiedError, StoreError
from tensorstash.policies import StoreIn
from tensorstash.testing.layouts import assert_same_bits

KIB = 2**10
SHARED = {"in_flight": "64KiB", "ahead": "64KiB", "timeout_s": 20}
"""Of bundles of 32 KiB."""


def stash_of(framework="reference", limits=None, closed=()):
    """Return a store that takes small payloads together, some of its gates closed, and a stash in front of it."""
    gate = Gated(small_bytes=8 * KIB)
    for name in closed:
        getattr(gate, name).clear()
    limits = ts.Limits(**{**SHARED, **(limits or {})})
    return gate, ts.stash(StoreIn(gate), framework=framework, min_bytes=0, limits=limits)


def packed(stash, count, nbytes=4 * KIB):
    """Return handles of tensors that differ, and their values."""
    values = [np.arange(nbytes // 4, dtype=np.float32) + 1000 * number for number in range(count)]
    with stash:
        return [stash._session.pack(ref.tensor(value, requires_grad=True) * 1.0) for value in values], values


def sines(count, framework=torch):
    """Return an input of 4 KiB, and what many operations make of it, of which each saves its own."""
    x = y = torch.linspace(0, 1, KIB).requires_grad_()
    for _ in range(count):
        y = y.sin()
    return x, y.sum()


def in_flight(stash):
    return stash._session._sender.in_flight


def test_small_payloads_are_one_record_and_come_back_with_one_read():
    gate, stash = stash_of()
    handles, values = packed(stash, 7)
    stash.drain()
    store = gate.opened[0]
    assert (store.put_count, gate.slots) == (1, 1)
    for handle, value in zip(reversed(handles), reversed(values), strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")
    assert store.get_count == 1
    stats = stash.stats()
    assert (stats.stored["disk"].tensors, stats.stored["disk"].nbytes) == (7, 7 * 4 * KIB)
    assert (stats.stages["disk"].tensors, stats.stages["disk"].loads) == (7, 7)


def test_a_full_bundle_is_written_while_the_program_goes_on():
    gate, stash = stash_of()
    with stash:
        handles = [stash._session.pack(ref.tensor(np.full(KIB, n, np.float32)) * 1.0) for n in range(8)]
        assert gate.arrived.acquire(timeout=10), "eight of 4 KiB fill one of 32 KiB"
    stash.drain()
    assert gate.opened[0].put_count == 1
    assert [handle().numpy()[0] for handle in handles] == list(range(8))


def test_large_payloads_go_alone_and_so_do_those_of_which_few_would_fit():
    gate, stash = stash_of(limits={"in_flight": "32KiB"})
    handles, values = packed(stash, 3, nbytes=8 * KIB)
    packed_large, large = packed(stash, 2, nbytes=12 * KIB)
    stash.drain()
    assert gate.opened[0].put_count == 5
    for handle, value in zip([*handles, *packed_large], [*values, *large], strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")


def test_who_asks_before_the_record_is_written_gets_the_bytes():
    gate, stash = stash_of(closed=["puts"])
    handles, values = packed(stash, 5)
    for handle, value in zip(handles, values, strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")
    gate.puts.set()
    stash.drain()
    assert gate.opened[0].get_count == 0


@pytest.mark.parametrize("ahead", ["64KiB", "256KiB"])
def test_they_come_back_in_any_order_any_number_of_times(ahead):
    _, stash = stash_of(framework="torch", limits={"ahead": ahead})
    values = [np.full(KIB, number, np.float32) for number in range(40)]
    with stash:
        handles = [stash._session.pack(torch.from_numpy(value) * 1.0) for value in values]
    stash.drain()
    dice = random.Random(0)
    for _ in range(200):
        number = dice.randrange(40)
        tensor = handles[number]()
        assert_same_bits(tensor.numpy(), values[number], "what was saved")
        tensor.fill_(-1.0)  # it is the receiver's own
    assert stash._session._sender.bundles_prefetched.peak <= 64 * KIB, "two of the largest that there are"


def test_they_take_no_room_from_two_large_ones_that_are_read_ahead():
    large = 32 * KIB
    gate, stash = stash_of(framework="torch", limits={"in_flight": "256KiB"})  # ahead: of two large ones, to the byte
    sizes = (large, large, 4 * KIB, large, large, 4 * KIB)
    with stash:
        handles = [stash._session.pack(torch.full((nbytes // 4,), 1.0 * nbytes) * 1.0) for nbytes in sizes]
    stash.drain()
    budget, shared = stash._session._state.prefetcher.budget, stash._session._sender.bundles_prefetched
    handles[-1]()
    assert (budget.used, shared.used > 0) == (2 * large, True)
    for handle, nbytes in zip(reversed(handles), reversed(sizes), strict=True):
        assert handle()[0] == nbytes
    assert gate.opened[0].get_count == 5, "each record once"


def test_backward_reads_each_record_once():
    gate, stash = stash_of(framework="torch")
    with stash:
        _, loss = sines(40)
    stash.drain()
    store = gate.opened[0]
    assert store.put_count == 5
    loss.backward()
    assert store.get_count == 5


def test_in_each_round_of_requests_the_next_record_is_prefetched():
    gate, stash = stash_of()
    handles, values = packed(stash, 16)
    stash.drain()
    store, readers = gate.opened[0], stash._session._state.prefetcher._readers
    for rounds in (1, 2):
        before = len(store.got_on)
        handles[15]()
        readers.submit(lambda: None).result(60)
        assert any(name.startswith("tensorstash-reader") for name in store.got_on[before:])
        for handle, value in zip(handles[14::-1], values[14::-1], strict=True):
            assert_same_bits(handle().numpy(), value, "what was saved")
        assert store.get_count == 2 * rounds


def test_where_no_thread_can_be_started_all_is_done_in_the_hooks():
    gate, stash = stash_of()
    session = stash._session
    session._sender.writers.close()
    session._state.prefetcher._readers.close()
    handles, values = packed(stash, 16)
    stash.drain()
    for handle, value in zip(handles[::-1], values[::-1], strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")
    assert (gate.opened[0].put_count, gate.opened[0].get_count) == (2, 2)


def test_gradients_are_the_same_bits_also_for_a_second_backward():
    _, stash = stash_of(framework="torch")
    plain, plain_loss = sines(40)
    plain_loss.backward(retain_graph=True)
    plain_loss.backward()
    with stash:
        x, loss = sines(40)
    stash.drain()
    loss.backward(retain_graph=True)
    loss.backward()
    assert_same_bits(x.grad.numpy(), plain.grad.numpy(), "a gradient")


def test_a_tensor_that_was_modified_before_its_bytes_were_copied_is_refused():
    _, stash = stash_of(framework="torch")
    x = torch.linspace(0, 1, KIB).requires_grad_()
    with stash as session:
        y = (x * 1.0).exp()
        loss = y.sum()
        with torch.no_grad():
            y.mul_(2.0)
        session.drain()
    with pytest.raises(SavedTensorModifiedError):
        loss.backward()


def test_a_dropped_graph_takes_its_waiting_record_with_it(no_gc):
    gate, stash = stash_of(limits={"in_flight": "128KiB"}, closed=["puts"])
    first, _ = packed(stash, 8)
    gate.arrived.acquire()  # the worker is inside put
    second, _ = packed(stash, 8)
    open_one, _ = packed(stash, 1)
    del first, second, open_one
    gate.puts.set()
    stash.drain()
    assert gate.opened[0].put_count == 1
    assert gate.slots == 0
    assert stash.stats().live.tensors == 0
    assert in_flight(stash).used == 0


def test_a_record_is_free_with_the_last_of_its_payloads(no_gc):
    gate, stash = stash_of()
    handles, values = packed(stash, 8)
    stash.drain()
    kept = handles.pop(3)
    handles.clear()
    assert gate.slots == 1
    assert stash.stats().live.tensors == 1
    assert_same_bits(kept().numpy(), values[3], "what was saved")
    assert stash._session._state.prefetcher.budget.used == 0, "nobody else waits for what was read"
    del kept
    assert gate.slots == 0


def test_what_is_on_its_way_stays_within_its_limit():
    _, stash = stash_of()
    handles, values = packed(stash, 100)
    stash.drain()
    assert in_flight(stash).peak <= 64 * KIB
    assert in_flight(stash).used == 0
    assert all(np.array_equal(handle().numpy(), value) for handle, value in zip(handles, values, strict=True))


def test_what_is_read_back_is_held_as_far_as_the_budget_goes():
    gate, stash = stash_of()
    handles, values = packed(stash, 40)
    stash.drain()
    records = list(dict.fromkeys(handle.payload.bundle for handle in handles))
    for handle, value in zip(handles, values, strict=True):
        if handle.payload.bundle in records:
            records.remove(handle.payload.bundle)
            assert_same_bits(handle().numpy(), value, "what was saved")
    held = {handle.payload.bundle for handle in handles if handle.payload.bundle.is_prefetched}
    assert len(held) <= 2
    assert gate.opened[0].get_count >= 5
    assert sum(handle.payload.bundle._held is not None for handle in handles) <= 16


def test_a_record_that_was_not_stored_is_an_error_for_each_who_asks_that_names_its_tensor():
    gate, stash = stash_of()
    store, put = gate.opened[0], gate.opened[0].put

    def refuse(data):
        raise StoreError("planted")

    store.put = refuse
    with stash:
        handles = [stash._session.pack(ref.tensor(np.zeros(n, np.float32)) * 1.0) for n in (10, 20)]
    stash.drain()
    for handle, n in zip(handles, (10, 20), strict=True):
        with pytest.raises(StoreError, match=rf"stage 1 of 1 .*Gated.*tensor float32\({n},\).*planted"):
            handle()
    assert stash.stats().live.tensors == 0
    store.put = put
    handles, values = packed(stash, 2)
    stash.drain()
    assert_same_bits(handles[1]().numpy(), values[1], "what was saved")


def test_a_passing_error_while_storing_is_tried_again():
    gate, stash = stash_of()
    store, put, errors = gate.opened[0], gate.opened[0].put, [OSError(4, "interrupted")]
    store.put = lambda data: put(data) if not errors else exec("raise errors.pop()", {"errors": errors})
    handles, values = packed(stash, 3)
    stash.drain()
    assert_same_bits(handles[0]().numpy(), values[0], "what was saved")


@pytest.mark.parametrize("ahead", [True, False])
def test_a_record_that_cannot_be_read_is_an_error_for_each_who_asks_and_may_come_back_later(ahead):
    gate, stash = stash_of()
    handles, values = packed(stash, 4)
    stash.drain()
    store, get = gate.opened[0], gate.opened[0].get
    store.get = lambda slot: get(slot)[:-1]
    if ahead:
        assert handles[0].payload.prefetch(stash._session._state.prefetcher._readers.submit)
    for handle in handles[:2]:
        with pytest.raises(CorruptDataError, match=r"stage 1 of 1 .*Gated.*tensor float32\(1024,\).*gave back"):
            handle()
        assert stash._session._state.prefetcher.budget.used == 0
    store.get = get
    for handle, value in zip(handles, values, strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")


def test_what_could_not_be_read_ahead_goes_with_its_payloads(no_gc):
    gate, stash = stash_of()
    handles, _ = packed(stash, 4)
    stash.drain()
    store, get = gate.opened[0], gate.opened[0].get
    store.get = lambda slot: get(slot)[:-1]
    bundle = ref_to(handles[0].payload.bundle)
    assert handles[0].payload.prefetch(stash._session._state.prefetcher._readers.submit)
    settle(stash._session)
    assert store.get_count == 1
    handles.clear()
    assert bundle() is None
    assert stash._session._state.prefetcher.budget.used == 0


def test_a_store_that_hangs_while_storing_is_named_and_the_bytes_are_there_still():
    gate, stash = stash_of(limits={"timeout_s": 0.05}, closed=["puts"])
    handles, values = packed(stash, 8)
    with pytest.raises(StoreError, match=r"still on their way after 0\.05 seconds"):
        stash.drain()
    for handle, value in zip(handles, values, strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")
    with pytest.raises(StoreError, match=r"Gated.*tensor float32\(1024,\).*0\.05 seconds"):
        packed(stash, 24)
    gate.puts.set()
    set_timeout(stash._session, 60)
    settle(stash._session)
    handles, values = packed(stash, 8)
    stash.drain()
    assert_same_bits(handles[7]().numpy(), values[7], "what was saved")


@pytest.mark.parametrize("ahead", [True, False])
def test_a_store_that_hangs_while_reading_is_named_and_answers_when_asked_again(ahead):
    gate, stash = stash_of()
    handles, values = packed(stash, 4)
    stash.drain()
    gate.gets.clear()
    set_timeout(stash._session, 0.05)
    if ahead:
        assert handles[0].payload.prefetch(stash._session._state.prefetcher._readers.submit)
    with pytest.raises(StoreError, match=r"stage 1 of 1 .*Gated.*tensor .*reading .*longer than 0\.05 seconds"):
        handles[1]()
    gate.gets.set()
    set_timeout(stash._session, 60)
    for handle, value in zip(handles, values, strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")
    settle(stash._session)


def test_many_threads_may_save_in_one_block():
    _, stash = stash_of()
    found = []

    def save(number):
        handles = [session.pack(ref.tensor(np.full(KIB, number, np.float32)) * 1.0) for _ in range(30)]
        found.append((number, handles))

    with stash:
        session = stash._session
        threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stash.drain()
    assert in_flight(stash).used == 0
    for number, handles in found:
        assert all((handle().numpy() == number).all() for handle in handles)


def test_a_bundle_that_comes_second_gives_its_room_back_before_another_is_waited_for():
    gate, stash = stash_of(closed=["puts"])
    handles, values = [], [np.full(KIB * size // 4, size, np.float32) for size in (*[4] * 7, 6)]
    with stash:
        sender, pack = stash._session._sender, stash._session.pack
        room_for = sender._room_for

        def another_first(nbytes, route):
            lease = room_for(nbytes, route)
            sender._room_for = room_for
            handles.extend(pack(ref.tensor(value) * 1.0) for value in values[:7])  # as another thread may
            return lease

        sender._room_for = another_first
        handles.append(pack(ref.tensor(values[7]) * 1.0))  # for which the other's bundle has no room any more
    gate.puts.set()
    for handle, value in zip(handles, values, strict=True):
        assert_same_bits(handle().numpy(), value, "what was saved")


def test_a_bundle_that_another_thread_leaves_unfilled_is_written_for_who_waits():
    _, stash = stash_of()
    with stash:
        sender, pack = stash._session._sender, stash._session.pack
        mine = pack(ref.tensor(np.full(KIB, 1, np.float32)) * 1.0)
        stash.drain()
        route, budget = mine.payload.route, sender.in_flight
        rest, room = budget.acquire(32 * KIB, timeout_s=0), budget.acquire(32 * KIB, timeout_s=0)
        theirs = Bundle(route, 32 * KIB, room, sender.bundles_prefetched, sender.timeouts)
        stored = theirs.add(np.full(KIB, 2, np.float32), mine.payload.spec, route.backend)
        send = sender._send_bundles

        def another_begins():
            send()
            sender._send_bundles = send
            sender._bundles[0] = ref_to(theirs)

        sender._send_bundles = another_begins
        handle = pack(ref.tensor(np.full(KIB, 3, np.float32)) * 1.0)
    rest.release()
    stash.drain()
    assert (theirs.get(stored.slot).view(np.float32) == 2).all()
    assert (handle().numpy() == 3).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_finds_what_was_not_written_and_fills_bundles_of_its_own():
    gate, stash = stash_of(closed=["puts"])
    with stash:
        before = [stash._session.pack(ref.tensor(np.full(KIB, n, np.float32)) * 1.0) for n in range(3)]
        pid = os.fork()
        if not pid:
            code = 1
            try:
                gate.puts.set()
                after, values = packed(stash, 9)
                stash.drain()
                is_same = all(
                    np.array_equal(handle().numpy(), value) for handle, value in zip(after, values, strict=True)
                )
                is_same = is_same and in_flight(stash).used == 0
                code = 0 if is_same and [handle().numpy()[0] for handle in before] == [0, 1, 2] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gate.puts.set()
    stash.drain()
    assert [handle().numpy()[0] for handle in before] == [0, 1, 2]
