import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorstash.engine.budget import ByteBudget


def test_bytes_beyond_the_limit_are_refused_at_once():
    budget = ByteBudget(10)
    assert budget.try_acquire(10)
    assert not budget.try_acquire(1)
    assert budget.used == budget.peak == 10


def test_a_waiting_request_gets_what_another_thread_releases():
    budget = ByteBudget(10)
    assert budget.try_acquire(6)
    got = []
    waiter = threading.Thread(target=lambda: got.append(budget.acquire(5, timeout_s=60)))
    waiter.start()
    budget.release(6)
    waiter.join()
    assert got == [True]
    assert budget.used == 5


def test_a_request_that_is_not_served_in_time_takes_nothing():
    budget = ByteBudget(10)
    assert budget.try_acquire(10)
    assert not budget.acquire(1, timeout_s=0.01)
    assert budget.used == 10


def test_dropped_bytes_count_from_the_next_request_on():
    budget = ByteBudget(10)
    assert budget.try_acquire(10)
    budget.drop(10)
    assert budget.used == 0
    assert budget.try_acquire(10)


@pytest.mark.parametrize("threads", [2, 4])
def test_the_limit_holds_under_threads(threads):
    budget = ByteBudget(100)

    def work(seed):
        for step in range(200):
            nbytes = (seed * 7 + step * 13) % 60 + 1
            assert budget.acquire(nbytes, timeout_s=60)
            assert budget.used <= 100
            budget.release(nbytes)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert budget.used == 0
    assert 0 < budget.peak <= 100


@given(st.lists(st.tuples(st.sampled_from(["take", "release", "drop"]), st.integers(0, 40)), max_size=50))
def test_used_bytes_are_what_was_taken_less_what_was_given_back(steps):
    budget, held = ByteBudget(100), []
    for step, nbytes in steps:
        if step == "take":
            fits = sum(held) + nbytes <= 100
            assert budget.try_acquire(nbytes) == fits
            if fits:
                held.append(nbytes)
        elif held:
            (budget.release if step == "release" else budget.drop)(held.pop())
        assert budget.used == sum(held) <= budget.peak <= 100
