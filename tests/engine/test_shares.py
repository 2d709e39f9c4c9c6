"""Bytes under way are a share of what steps save, unless the user has said how many."""

import numpy as np
import pytest
from gates import Gated
from inside import ahead, in_flight, session_of

import tensorstash as ts
from tensorstash.host.budget import MOST_SHARE, ByteBudget, Shares, share_of
from tensorstash.policies.limits import Limits
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import floats

ELEMENTS = 2**17  # half a MiB
SAVES = 20


def stash(framework, policy=None, **limits):
    return ts.stash(policy or ts.StoreIn(Gated()), framework=framework, min_bytes=0, limits=Limits(**limits))


def chain(lab, x, saves=SAVES):
    y = x
    for _ in range(saves):
        y = y.exp().tanh()
    return y.sum()


def gradients(lab, scope, elements, steps=1, saves=SAVES):
    for _ in range(steps):
        x = lab.tensor(floats(elements) * np.float32(0.01), requires_grad=True)
        with scope:
            loss = chain(lab, x, saves)
        lab.backward(loss)
    return lab.gradient(x)


def under_way(scope, device="cpu"):
    transfers = session_of(scope).sender.transfers
    return (in_flight(scope), ahead(scope)) if device == "cpu" else (transfers.out_budget, transfers.back_budget)


@pytest.mark.parametrize("step_bytes", [0, 1, 10**3, 2**20, 40 * 2**20, 300 * 2**20, 2**36])
@pytest.mark.parametrize("part", [1, 3, 20, 1000])
def test_a_share_is_never_more_than_a_quarter_of_what_is_worth_counting_nor_than_the_most(step_bytes, part):
    share = share_of(step_bytes, step_bytes // part)
    assert 2**20 <= share <= max(min(MOST_SHARE, step_bytes // 4), 2**20)


def test_a_budget_follows_the_largest_share_there_ever_was():
    shares, budget = Shares(), ByteBudget(MOST_SHARE)
    shares.follow(budget)
    largest = most = 0
    for step in ([2**20] * 300, [30 * 2**20, *[2**20] * 250], [2**10] * 9, [70 * 2**20] * 3, [2**20] * 900):
        for count, nbytes in enumerate(step, start=1):
            shares.saw(nbytes)
            largest = max(largest, nbytes)
            most = max(most, share_of(sum(step[:count]), largest))
            assert budget.limit == most
        shares.step_ended()


@pytest.mark.parametrize(("framework", "device"), [*((name, "cpu") for name in BACKENDS), ("reference", "sim:0")])
def test_by_default_no_more_than_half_of_a_small_step_is_under_way(framework, device):
    scope = stash(framework, ts.CpuOffload() if device == "sim:0" else None)
    gradients(lab_of(framework).on(device), scope, ELEMENTS, steps=2)
    step_bytes = scope.stats().stashed.nbytes // 2
    assert step_bytes >= SAVES * ELEMENTS * 4 // 2
    for budget in under_way(scope, device):
        assert 0 < budget.peak <= budget.limit <= step_bytes // 4 < 2**24
        assert budget.used == 0


def test_a_share_grows_with_batches_within_the_step_and_never_shrinks():
    scope, lab = stash("reference"), lab_of("reference")
    limits = []
    for elements in (2**10, 2**17, 2**18, 2**10):
        gradients(lab, scope, elements, steps=2)
        limits.append(under_way(scope)[0].limit)
    assert limits[0] == 2**20 < limits[1] < limits[2] == limits[3]
    gradients(lab, scope, 2**18, steps=3)
    assert under_way(scope)[0].limit == limits[2], "steps are added up"


def test_limits_that_were_given_stay():
    given = stash("reference", in_flight="3 MiB", ahead=0)
    gradients(lab_of("reference"), given, ELEMENTS, steps=2)
    assert [budget.limit for budget in under_way(given)] == [3 * 2**20, 0]


@pytest.mark.parametrize("framework", BACKENDS)
def test_bytes_that_an_interrupt_has_left_of_reading_ahead_are_counted_anew_with_the_next_step(framework):
    lab, one = lab_of(framework), stash(framework, "disk_spill")
    gradients(lab, one, ELEMENTS)
    ahead(one).taken += 2 * MOST_SHARE
    gradients(lab, one, ELEMENTS)
    assert ahead(one).used == 0
