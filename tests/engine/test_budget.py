import gc
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorstash.host import budget as budget_module
from tensorstash.host.budget import ByteBudget
from tests.interrupts import interrupt


@pytest.mark.parametrize("drop", [False, True])
def test_a_waiting_request_gets_what_another_thread_gives_back(drop, monkeypatch):
    if not drop:
        monkeypatch.setattr(budget_module, "LOOK_AGAIN_S", 60)
    budget = ByteBudget(10)
    lease = budget.try_acquire(6)
    got = []
    waiter = threading.Thread(target=lambda: got.append(budget.acquire(5, timeout_s=60)))
    waiter.start()
    while not budget._bells:
        pass
    if not drop:
        lease.release()
    lease = None
    waiter.join(30)
    assert got[0] is not None
    assert budget.used == 5


def test_a_request_that_is_not_served_in_time_takes_nothing():
    budget = ByteBudget(10)
    lease = budget.try_acquire(10)
    assert budget.acquire(1, timeout_s=0.01) is None
    assert budget.used == 10
    del lease


def test_a_lease_that_a_collected_cycle_held_gives_its_bytes_back():
    budget, cycle = ByteBudget(10), []
    cycle.append((cycle, budget.try_acquire(10)))
    del cycle
    gc.collect()
    assert budget.used == 0


@pytest.mark.parametrize("method", ["take", "give", "follow", "wait"])
def test_an_interrupt_between_any_two_steps_frees_no_byte_in_use_and_loses_none_to_a_thread_that_waits(method):
    def call():
        try:
            work()
        except KeyboardInterrupt as error:
            if method == "take":  # other frames hold the lease that they were called with
                errors.append(error)
            raise

    line, interrupted, errors = 0, 0, []
    while interrupted == line:
        budget, owner = ByteBudget(10), np.zeros(3)
        lease = budget.try_acquire(4)
        budget.try_acquire(2)  # which comes back at once
        line += 1
        work = {
            "take": partial(budget.try_acquire, 6),
            "give": lease.release,
            "follow": partial(lease.follow, owner, 3),
            "wait": partial(budget.wait, 3, timeout_s=1e-3),
        }[method]
        interrupted += interrupt(call, "budget.py", line)
        assert budget.used >= 4 or method == "give"
        del lease, owner
        work = None
        assert budget.wait(0, timeout_s=60)
        assert budget.try_acquire(10) is not None
        assert budget.try_acquire(10) is not None
    assert line > 2


@pytest.mark.parametrize("threads", [2, 4])
def test_the_limit_holds_under_threads(threads):
    budget = ByteBudget(100)

    def work(seed):
        for step in range(200):
            lease = budget.acquire((seed * 7 + step * 13) % 60 + 1, timeout_s=60)
            assert lease is not None
            assert budget.used <= 100
            if step % 2:
                lease.release()
            del lease

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert budget.used == 0
    assert 0 < budget.peak <= 100


@given(st.lists(st.tuples(st.sampled_from(["take", "release", "drop"]), st.integers(0, 40)), max_size=50))
def test_used_bytes_are_what_was_taken_less_what_was_given_back(steps):
    budget, held, most = ByteBudget(100), [], 0
    for step, nbytes in steps:
        if step == "take":
            fits = sum(nbytes for _, nbytes in held) + nbytes <= 100
            lease = budget.try_acquire(nbytes)
            assert (lease is not None) == fits
            if fits:
                held.append((lease, nbytes))
            del lease
        elif held:
            lease, _ = held.pop()
            if step == "release":
                lease.release()
            del lease
        assert budget.used == sum(nbytes for _, nbytes in held) <= 100
        most = max(most, budget.used)
        assert budget.peak == most


def test_bytes_that_follow_an_object_are_in_use_as_long_as_it_lives():
    budget, owner = ByteBudget(10), np.zeros(3)
    lease = budget.try_acquire(10)
    lease.follow(owner, 4)
    assert budget.used == 10
    del lease
    assert budget.used == 4
    assert budget.try_acquire(7) is None
    del owner
    assert budget.used == 0
