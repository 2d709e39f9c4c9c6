"""Two processes under a budget follow one plan, with the gradients of plain data parallelism."""

import json
import os
import sys
from dataclasses import replace

import pytest
import torch.distributed as dist

from tensorstash.abilities import Ranks
from tensorstash.engine.planned.agreement import Agreement
from tensorstash.planner.decision import Decision, Measured, decide
from tensorstash.planner.model import Option, Problem, Record, SavedClass
from tests.processes import outputs_of

RUNS = ("declined", "all tiers", "slow disk", "replan")

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build has no torch.distributed")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each of two ranks reports."""
    store = tmp_path_factory.mktemp("rendezvous") / "store"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch.budget_ranks"]
    outputs = outputs_of([[*command, str(rank), "2", str(store)] for rank in range(2)], [environment] * 2)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize("run", [*RUNS, "only one"])
def test_gradients_and_parameters_are_those_without_a_budget(reports, run):
    for report in reports:
        assert report[run]["bits"] == report["plain"]


@pytest.mark.parametrize("run", RUNS)
def test_all_ranks_follow_one_plan_from_the_same_step_on(reports, run):
    first, second = (report[run] for report in reports)
    assert first["digest"] == second["digest"]
    assert first["digests"] == second["digests"]
    assert first["digests"].index(first["digests"][-1]) > 2  # while the ranks agree all are at the floor
    assert first["ranks"] == second["ranks"] == [0, 1]
    assert "one plan of 2 processes" in first["summary"]


def test_where_one_rank_holds_more_than_was_planned_all_have_a_smaller_plan(reports):
    before, after = (reports[0]["replan"]["digests"][step] for step in (10, -1))
    assert before != after
    assert max(reports[1]["replan"]["held"][-3:]) <= 1


def test_the_disk_of_the_slowest_rank_decides(reports):
    assert reports[0]["slow disk"]["spilled"] == reports[1]["slow disk"]["spilled"]


def test_a_rank_that_is_the_only_one_with_a_budget_plans_for_itself(reports):
    alone = reports[1]["only one"]
    assert alone["status"] == "planned"
    assert alone["ranks"] == [1]


class Rank:
    """A rank that measures and follows, step by step, on a store that it shares with others."""

    def __init__(self, shared, rank, count, budget=250, slower=1.0):
        self.said = []
        self.agreement = Agreement(Ranks(rank, count, shared), self.said.append)
        options = Option("keep"), Option("compress", 40, 0.1 * slower)
        keys = [SavedClass("", "Mul", "float32", (5, 5), place) for place in range(3)]
        records = tuple(Record(k, 100, p, p + 1.0, 9.0 - p, 9.5 - p, options) for p, k in enumerate(keys))
        self.measured = Measured(Problem(records, budget), {}, (100, 100, 100), {100: 3})
        self.step = 1
        self.followed = None

    def tells(self, signature="a"):
        self.agreement.tell(signature, self.measured, self.step)
        return self.begins(signature)

    def begins(self, signature="a"):
        found = self.agreement.look(signature, self.step)
        self.step += 1
        if found is not None:
            self.followed = found[1]
        return found is not None


def shared_by(count, **options):
    store = dist.HashStore()
    return [Rank(store, rank, count, **options) for rank in range(count)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_ranks_that_keep_step_follow_a_decision_in_the_same_step(order):
    ranks = shared_by(3)
    assert [ranks[place].tells() for place in order] == [False] * 3
    assert [ranks[place].begins() for place in order] == [False] * 3
    assert [ranks[place].begins() for place in order] == [True] * 3
    assert len({rank.followed.to_text() for rank in ranks}) == 1
    assert ranks[0].followed.ranks == (0, 1, 2)
    assert [ranks[place].begins() for place in order] == [False] * 3


def test_the_least_budget_and_the_slowest_rank_decide():
    store = dist.HashStore()
    ranks = [Rank(store, 0, 2, budget=290), Rank(store, 1, 2, budget=250, slower=3.0)]
    for rank in ranks:
        rank.tells()
    for _ in range(2):
        for rank in ranks:
            rank.begins()
    problem = ranks[0].followed.problem
    assert problem.budget == 250
    assert problem.records[0].options[1].seconds == pytest.approx(0.3)


def test_a_rank_that_saves_something_else_is_not_waited_for():
    first, second, other = shared_by(3)
    record = replace(other.measured.problem.records[0], key=SavedClass("stage", "Mul", "float32", (5, 5), 0))
    other.measured = Measured(Problem((record,), 50), {}, (100,), {100: 1})
    for rank in (first, second, other):
        rank.tells()
    for _ in range(3):
        for rank in (first, second, other):
            rank.begins()
    assert first.followed.ranks == second.followed.ranks == (0, 1)
    other.begins()
    assert other.followed.ranks == (2,)


def test_a_rank_that_comes_late_follows_what_was_decided():
    first, late = shared_by(2)
    first.tells()
    while first.followed is None:
        first.begins()
    late.step = 40
    assert late.tells()
    assert late.followed.to_text() == first.followed.to_text()


def test_of_two_decisions_that_are_made_at_once_one_holds():
    ranks = shared_by(2)
    for rank in ranks:
        rank.tells()
    for _ in range(2):
        for rank in ranks:
            rank.begins()
    for asked, rank in enumerate(ranks):
        rank.agreement.propose("a", replace(rank.followed, asked=1000 + asked), rank.step)
    for rank in ranks:
        assert not rank.begins()
    for rank in ranks:
        assert rank.begins()
    assert [rank.followed.asked for rank in ranks] == [1000, 1000]


def test_sessions_that_save_the_same_do_not_meet():
    store = dist.HashStore()
    first, second = Rank(store, 0, 2), Rank(store, 0, 2, budget=220)
    for rank in (first, second):
        rank.tells()
        while rank.followed is None:
            rank.begins()
    assert (first.followed.asked, second.followed.asked) == (250, 220)


def test_ranks_that_lose_each_other_are_told_and_go_on():
    class Lost:
        def add(self, key, amount):
            raise RuntimeError("connection reset by peer")

        set = get = add

    alone = Rank(Lost(), 0, 2)
    assert not alone.tells()
    assert alone.agreement.is_lost
    assert "do not reach each other any more (RuntimeError: connection reset by peer)" in alone.said[0]
    assert len(alone.said) == 1


def test_a_decision_is_the_same_on_the_other_side():
    rank = Rank(None, 0, 1)
    decision = decide(rank.measured, [0])
    again = Decision.from_text(decision.to_text())
    assert again == decision
    assert {name: plan.digest for name, plan in again.plans().items()} == {
        name: plan.digest for name, plan in decision.plans().items()
    }
