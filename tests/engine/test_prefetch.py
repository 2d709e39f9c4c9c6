"""Reading ahead is a hint: it saves waiting and changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
from gates import Gated
from inside import ahead

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.engine import session
from tensorstash.engine.dedup import Stretch
from tensorstash.engine.prefetch import QUICK_BYTES, Prefetcher
from tensorstash.host.budget import ByteBudget
from tensorstash.host.pool import POOL
from tensorstash.host.workers import Workers
from tensorstash.policies import StoreIn
from tensorstash.stores import Memory

DEPTH = 12
MIB = 2**20


def leaf():
    return ref.tensor(np.linspace(-1, 1, 50, dtype=np.float32), requires_grad=True)


def chain(x, depth=DEPTH):
    for _ in range(depth):
        x = (x * 1.01).tanh()
    return x.sum()


def run(limits, steps=3, depths=(DEPTH,)):
    gate = Gated()
    stash = ts.stash(StoreIn(gate), framework="reference", min_bytes=0, limits=limits)
    grads = []
    for step in range(steps):
        x = leaf()
        with stash as session:
            loss = chain(x, depths[step % len(depths)])
        session.drain()
        loss.backward()
        grads.append(x.grad.numpy().copy())
    return grads, gate, stash


def plain(depth=DEPTH):
    x = leaf()
    chain(x, depth).backward()
    return x.grad.numpy()


def test_payloads_are_read_before_they_are_asked_for():
    grads, gate, _ = run(ts.Limits(ahead="1MiB"))
    on_readers = sum(name.startswith("tensorstash-reader") for name in gate.opened[0].got_on)
    assert on_readers > 0
    assert all(np.array_equal(grad, plain()) for grad in grads)


@pytest.mark.parametrize("learned", [None, (0, 1, 2), (5, 3, 11, 0), tuple(range(100, 0, -1))])
def test_no_order_or_a_wrong_one_changes_no_result(monkeypatch, learned):
    known = Stretch.ask

    def ask(self, index, order):
        known(self, index, tuple(i for i in learned if i < self.count))

    if learned is None:
        monkeypatch.setattr(Prefetcher, "asked", lambda self, requests, index: None)
    else:
        monkeypatch.setattr(Stretch, "ask", ask)
    grads, _, _ = run(ts.Limits(ahead=400))
    assert all(np.array_equal(grad, plain()) for grad in grads)


@pytest.mark.parametrize(
    "policy", [ts.Quantize(8) | ts.Compress(), ts.Quantize(4) | StoreIn(Gated())], ids=["in memory", "small"]
)
@pytest.mark.parametrize(("quick", "most"), [(0, 0), (1, 400), (250, 600)])
def test_what_only_has_to_be_decoded_does_not_wait_decoded_for_long(monkeypatch, quick, most, policy):
    monkeypatch.setattr(session, "QUICK_BYTES", quick)
    stash = ts.stash(policy, framework="reference", min_bytes=0, limits=ts.Limits(in_flight=0))
    for _ in range(3):
        x = leaf()
        with stash:
            loss = chain(x)
        loss.backward()
    assert sum(stored.tensors for stored in stash.stats().stored.values()) >= 3 * DEPTH
    # With the one that is being asked for.
    assert ahead(stash).peak == most


def test_where_forward_and_backward_begin_no_memory_is_idle_that_only_the_other_uses():
    def leave_idle():
        POOL.worth(8 * MIB)  # which the few bytes of this program are not
        taken = POOL.take(6 * MIB)
        del taken
        assert POOL.idle_bytes >= 6 * MIB

    stash = ts.stash(StoreIn(Memory()), framework="reference", min_bytes=0)
    for step in range(2):
        leave_idle()
        x = leaf()
        with stash:
            assert (POOL.idle_bytes < MIB) == (step > 0)
            loss = chain(x)
        leave_idle()
        loss.backward()
        assert POOL.idle_bytes <= QUICK_BYTES


class Known:
    """What reading ahead looks at of a payload; notes that it was read."""

    is_quick = False
    stored = object()
    lease = None
    nbytes = 1
    users = 1

    def __init__(self, spec, read, index=0):
        self.place = SimpleNamespace(spec=spec, is_costly=True, is_now=False)
        self.index = index
        self._read = read

    def prefetch(self):
        self._read.append(self.index)
        return True


def saved(specs, kind=Known):
    """Requests for payloads of these specs, the payloads, and what is read of them."""
    requests, read = Stretch(), []
    payloads = [kind(spec, read, index) for index, spec in enumerate(specs)]
    for place, payload in enumerate(payloads):
        requests.add(place, payload)
    return requests, payloads, read


def asked_for(prefetcher, specs, order):
    """Ask for payloads in an order, and return what was read after the first of them."""
    requests, payloads, read = saved(specs)
    for place, index in enumerate(order):
        prefetcher.asked(requests, payloads[index])
        if not place:
            first = list(read)
    prefetcher.learn(requests)
    assert len(payloads) == len(specs)  # alive until now
    return first


def test_what_is_read_first_follows_the_order_of_the_last_time():
    prefetcher = Prefetcher(ByteBudget(10), Workers("test", 1))
    order = (1, 0, 3, 2)
    assert asked_for(prefetcher, "abcd", order) == [0]  # at first the reverse order of packing, of which 1 is the third
    assert asked_for(prefetcher, "abcd", order) == [0, 3, 2]
    assert asked_for(prefetcher, "wxyz", order) == [0, 3, 2]  # other shapes, in the same places
    assert asked_for(prefetcher, "abcde", order) == [0]  # another program
    assert asked_for(prefetcher, "abcd", (3, 2, 1, 0)) == [2]


def test_orders_of_the_latest_programs_are_remembered():
    prefetcher = Prefetcher(ByteBudget(10), Workers("test", 1))
    for number in range(3, 200):
        asked_for(prefetcher, "a" * number, (0, 1, 2))
    assert asked_for(prefetcher, "a" * 199, (0, 1, 2))[:2] == [1, 2]
    assert asked_for(prefetcher, "a" * 3, (0, 1, 2)) == []
    assert asked_for(prefetcher, "a" * 99, (0, 1, 2)) == []


@pytest.mark.parametrize(
    ("users", "order"),
    [(5, (5, 4, 5, 3, 5, 2, 5, 1, 5, 0)), (1, (5, 4, 4, 3, 2, 3, 3, 1, 0))],
    ids=["shared by several", "made of several times"],
)
def test_who_asks_again_within_a_backward_begins_none_anew(users, order):
    prefetcher = Prefetcher(ByteBudget(10), Workers("test", 1))
    requests, payloads, read = saved("abcdef")
    payloads[5].users = users
    for index in order:
        prefetcher.asked(requests, payloads[index])
    assert requests.asked == (5, 4, 3, 2, 1, 0)
    assert read == [4, 3, 2, 1, 0]
    prefetcher.asked(requests, payloads[5])
    assert requests.asked == (5,)
    assert read == 2 * [4, 3, 2, 1, 0]


class Leased(Known):
    """Takes a byte of a budget when it is read."""

    def prefetch(self):
        self.lease = self.budget.try_acquire(1)
        return self.lease is not None and super().prefetch()


def test_what_was_made_again_finds_room_once_it_has_found_none(monkeypatch):
    prefetcher = Prefetcher(ByteBudget(4), Workers("test", 1))
    monkeypatch.setattr(Leased, "budget", prefetcher.budget, raising=False)
    requests, payloads, read = saved("a" * 9, Leased)
    prefetcher.asked(requests, payloads[8])
    assert read == [7, 6, 5, 4]
    assert prefetcher.hold(1) is None
    payloads[7].lease = None
    prefetcher.asked(requests, payloads[7])
    assert read == [7, 6, 5, 4], "it is left to what is made again"
    assert prefetcher.hold(1) is not None
    payloads[6].lease = None
    prefetcher.asked(requests, payloads[6])
    assert read == [7, 6, 5, 4, 3]


@pytest.mark.parametrize("is_quick", [True, False], ids=["decoded", "read"])
def test_no_more_waits_decoded_than_hides_the_work_and_what_has_gone_counts_no_longer(monkeypatch, is_quick):
    monkeypatch.setattr(Known, "is_quick", is_quick)
    count, most = 400, 100
    prefetcher = Prefetcher(ByteBudget(count), Workers("test", 1), quick_bytes=most)
    requests, payloads, read = saved("a" * count)
    prefetcher.asked(requests, payloads.pop())
    del payloads[-50:]  # with a part of the graph
    waiting = []
    while payloads:
        prefetcher.asked(requests, payloads.pop())
        waiting.append(len(read) + 1 - count + len(payloads))
    assert len(read) == count - 1  # all but the first that was asked for
    if is_quick:
        assert set(waiting[: count - 50 - 2 * most]) == {most}
    else:
        assert waiting[0] == count - 52, "all that is left has been read at the first request"
