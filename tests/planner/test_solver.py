"""Plans hold their budget, and cost little more than the best of all plans."""

import os
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tensorstash.planner.bound import is_available, lower_bound
from tensorstash.planner.market import Market
from tensorstash.planner.model import Option, Problem, Record, SavedClass
from tensorstash.planner.pressure import Pressure, pressure
from tensorstash.planner.solve import price_of_memory, solve, trivial
from tests.planner.problems import all_choices, backwards, cheapest, language_model, random_problem, replayed

LONG = bool(os.environ.get("TENSORSTASH_LONG_PLANS"))

needs_scipy = pytest.mark.skipif(not is_available(), reason="could not import 'scipy'")


def step_of(sizes: list[int], *options: Option, budget: int) -> Problem:
    """Return a step that saves so many bytes each, and asks for them in reverse."""
    records = [
        Record(
            SavedClass("", "Mul", "float32", (nbytes,), place),
            nbytes,
            place,
            place + 0.5,
            20.0 - place,
            20.5 - place,
            (Option("keep"), *options),
        )
        for place, nbytes in enumerate(sizes)
    ]
    return Problem(tuple(records), budget, step_s=30.0)


def assert_holds_for_a_machine(problem: Problem, choice: tuple[int, ...], found: Pressure) -> None:
    """Fail if a machine holds more than the room, or waits for longer than said, in forward and backward."""
    waited = 0.0
    for way in (problem, backwards(problem)):
        seconds, most = replayed(way, choice)
        assert most <= problem.room + 1e-6
        waited += seconds
    assert waited <= found.stall_s + 1e-9


@pytest.mark.parametrize("seed", range(200 if LONG else 24))
def test_no_plan_is_much_cheaper_than_the_one_found(seed: int) -> None:
    problem = random_problem(seed, 4 + seed % 5 if LONG else 4)
    solution = solve(problem)
    best = cheapest(problem)
    if best == float("inf"):
        assert solution.status == "impossible"
        return
    assert solution.status != "impossible"
    assert pressure(problem.table, np.array(solution.choice), problem.room).excess <= 0
    one_record = max(option.seconds for record in problem.records for option in record.options)
    assert best <= solution.seconds + 1e-9 <= max(1.02 * best, best + one_record) + 1e-6


@pytest.mark.parametrize("seed", range(1000 if LONG else 60))
def test_what_a_plan_says_of_waiting_and_memory_holds_for_a_machine(seed: int) -> None:
    problem = random_problem(seed, 7)
    choice = solve(problem).choice
    found = pressure(problem.table, np.array(choice), problem.room)
    if found.excess > 0:
        return
    assert_holds_for_a_machine(problem, choice, found)


@pytest.mark.parametrize("seed", range(1000 if LONG else 100))
def test_what_is_said_of_any_plan_holds_for_a_machine(seed: int) -> None:
    problem = random_problem(seed, 7)
    rng = np.random.default_rng(seed)
    choice = tuple(int(rng.integers(len(record.options))) for record in problem.records)
    found = pressure(problem.table, np.array(choice), problem.room)
    if found.excess > 0:
        return
    assert_holds_for_a_machine(problem, choice, found)


@pytest.mark.parametrize("seed", range(20))
def test_a_cost_that_need_not_be_exact_is_never_too_high(seed: int) -> None:
    problem = random_problem(seed, 7)
    rng = np.random.default_rng(seed)
    choice = np.array([rng.integers(len(record.options)) for record in problem.records])
    exact = pressure(problem.table, choice, problem.room)
    for enough in (exact.seconds, 0.9 * exact.cost, 1.1 * exact.cost):
        found = pressure(problem.table, choice, problem.room, enough)
        assert min(enough, exact.cost) <= found.cost <= exact.cost
        assert found._replace(stall_s=0.0, held=0, in_vain=0) == exact._replace(stall_s=0.0, held=0, in_vain=0)


def test_three_items_of_one_unit_fit_a_budget_of_one_only_one_at_a_time() -> None:
    problem = step_of([100, 100, 100], Option("recompute", 0, 1.0), budget=200)
    solution = solve(problem)
    assert sum(place == 0 for place in solution.choice) <= 2
    assert solution.peak <= 200


def test_a_plan_for_more_memory_costs_no_more() -> None:
    problem = language_model(8, 1.0)
    costs = [
        solve(replace(problem, budget=int(problem.budget * share))).seconds for share in (0.2, 0.3, 0.45, 0.6, 0.8, 1)
    ]
    assert all(later <= 1.03 * earlier + 1e-9 for earlier, later in pairwise(costs))
    assert costs[-1] == 0


def test_a_faster_link_or_another_option_makes_nothing_dearer() -> None:
    slow, fast = (solve(language_model(8, 0.4, link=link)).seconds for link in (1e9, 50e9))
    assert fast <= slow * 1.03
    problem = language_model(8, 0.4)
    poorer = replace(problem, records=tuple(replace(r, options=r.options[:3]) for r in problem.records))
    assert solve(problem).seconds <= solve(poorer).seconds or solve(poorer).status == "impossible"


def test_a_link_of_a_tenth_moves_the_plan_to_what_needs_no_link() -> None:
    def carried(problem: Problem) -> int:
        places = zip(problem.records, solve(problem).choice, strict=True)
        return sum(record.nbytes for record, place in places if record.options[place].link)

    assert carried(language_model(8, 0.4, link=5e9)) < carried(language_model(8, 0.4, link=50e9)) / 2


@needs_scipy
@pytest.mark.parametrize(
    ("layers", "share"),
    [
        *((8, share) for share in (0.15, 0.2, 0.25, 0.6)),
        (12, 0.15),
        *((34, share) for share in (0.12, 0.15, 0.25, 0.6)),
        (138, 0.35),
        *([(138, 0.1), (540, 0.35)] if LONG else []),
    ],
)
def test_the_bound_is_close(layers: int, share: float) -> None:
    problem = language_model(layers, share)
    solution, bound = solve(problem), lower_bound(problem)
    assert bound is not None
    assert bound <= solution.seconds * (1 + 1e-6)
    assert solution.seconds - bound <= max(0.01 * bound, 0.0015 * problem.step_s)


def test_what_one_link_has_no_time_for_takes_another() -> None:
    def sold(*links: str) -> Market:
        ways = (Option(link, 0, 0.0, link, 1.6, 1.6) for link in links)
        market = Market(step_of([100] * 8, *ways, Option("recompute", 0, 1.0), budget=0).table, 300)
        market.search()
        return market

    both = sold("copy", "disk")
    assert both.best is not None
    assert {1, 2} <= set(both.best.tolist())
    assert both.price < sold("copy").price / 2


@needs_scipy
@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_below_the_best_of_all_plans(seed: int) -> None:
    problem = random_problem(seed, 4)
    bound, best = lower_bound(problem), cheapest(problem)
    assert best == float("inf") or (bound is not None and bound <= best + 1e-7)


def test_everything_is_kept_if_it_fits() -> None:
    problem = step_of([100, 100], Option("compress", 10, 0.1), budget=200)
    assert solve(problem).status == "declined"
    assert solve(problem).choice == (0, 0)
    assert price_of_memory(problem, solve(problem)) == 0


def test_what_cannot_be_held_names_the_smallest_budget_that_works() -> None:
    problem = step_of([100, 100, 100], Option("compress", 50, 0.1), budget=120)
    solution = solve(problem)
    assert solution.status == "impossible"
    assert solve(replace(problem, budget=solution.least)).status == "planned"
    assert solve(replace(problem, budget=solution.least - 1)).status == "impossible"


def test_the_plans_of_one_tier_that_hold_the_budget_are_found() -> None:
    problem = step_of([100, 100, 100], Option("compress", 10, 0.1), Option("cast", 90, 0.1), budget=250)
    assert set(trivial(problem)) == {"compress"}


def test_few_choices_are_looked_at_one_by_one() -> None:
    assert len(all_choices(step_of([1, 1], Option("a"), Option("b"), budget=1))) == 9


@needs_scipy
def test_no_plan_that_a_search_finds_is_cheaper_than_any_could_be() -> None:
    # What would come back before it has left once counted as gone, for less waiting than that takes.
    problem = language_model(8, 0.1)
    bound = lower_bound(problem)
    assert bound is not None
    assert bound <= solve(problem).seconds
    assert solve(problem).seconds <= 0.172 * problem.step_s  # changes of single decisions end at 0.176


def test_what_would_come_back_before_it_has_left_is_waited_for_both_ways() -> None:
    keep, away = Option("keep"), Option("host", 0, 0.0, "link", 0.8, 0.8)
    first, second = (SavedClass("", "Mul", "float32", (25,), place) for place in range(2))
    records = Record(first, 100, 0.0, 0.0, 1.0, 1.1, (keep, away)), Record(second, 100, 0.5, 0.55, 0.6, 0.7, (keep,))
    problem = Problem(records, 100)
    found = pressure(problem.table, np.array([1, 0]), problem.room)
    assert found.excess <= 0
    assert found.in_vain.tolist() == [True, False]
    out, back = 0.8 - 0.5, 0.7 - (1.0 - 0.8)
    assert found.stall_s == pytest.approx(out + back)


def test_what_is_on_its_way_out_is_waited_for_before_what_comes_back_is_put_off() -> None:
    keep, quick, slow = (Option("keep"), Option("host", 0, 0.0, "link", 0.2, 1.0), Option("host", 0, 0.0, "link", 1, 1))
    keys = [SavedClass("", "Mul", "float32", (25,), place) for place in range(3)]
    records = (
        Record(keys[0], 100, 0.0, 0.0, 1.5, 1.6, (keep, quick)),  # comes back from 0.5 on
        Record(keys[1], 100, 0.8, 0.9, 5.0, 5.1, (keep, slow)),  # has left at 1.9
        Record(keys[2], 100, 1.0, 1.0, 1.1, 1.2, (keep,)),
    )
    problem = Problem(records, 200)
    found = pressure(problem.table, np.array([1, 1, 0]), problem.room)
    assert found.excess <= 0
    assert found.stall_s == pytest.approx(1.9 - 1.0)


def test_a_link_stands_still_until_what_a_wait_has_put_off_is_there() -> None:
    keep, away = Option("keep"), Option("host", 0, 0.0, "link", 1.0, 1.0)
    keys = [SavedClass("", "Mul", "float32", (25,), place) for place in range(3)]
    records = (
        Record(keys[0], 100, 0.0, 0.0, 20.0, 20.1, (keep, away)),  # has left at 1.0
        Record(keys[1], 100, 0.5, 1.2, 15.0, 15.1, (keep, away)),  # is saved at 1.0, freed at 1.7, has left at 2.7
        Record(keys[2], 100, 1.5, 1.5, 10.0, 10.1, (keep,)),
    )
    problem = Problem(records, 100)
    found = pressure(problem.table, np.array([1, 1, 0]), problem.room)
    assert found.excess <= 0
    assert found.stall_s == pytest.approx(2.7 - 1.5)
    assert_holds_for_a_machine(problem, (1, 1, 0), found)


@pytest.mark.parametrize("seed", [14, 23])
def test_single_changes_make_what_prices_have_found_cheaper(seed: int) -> None:
    problem = random_problem(seed, 14)
    market = Market(problem.table, problem.room)
    market.search()
    assert market.best is not None
    assert solve(problem).seconds < 0.95 * pressure(problem.table, market.best, problem.room).cost


def test_links_are_for_what_forward_lets_go_of_first() -> None:
    away = Option("host", 0, 0.0, "link", 1.0, 1.0)
    keys = [SavedClass("", "Mul", "float32", (25,), place) for place in range(40)]
    records = tuple(
        Record(key, 100, 1.0 * place, 1.0 * place, 100.0 - place, 100.5 - place, (Option("keep"), away))
        for place, key in enumerate(keys)
    )
    problem = Problem(records, 2000)
    market = Market(problem.table, problem.room)
    market.search()
    assert market.best is not None
    assert market.best.tolist() == sorted(market.best.tolist(), reverse=True)
    assert pressure(problem.table, market.best, problem.room).stall_s == 0


def test_what_a_tensor_is_made_of_comes_back_with_it_and_goes_again() -> None:
    """Of four tensors each is made of the one before; the first has no recipe."""
    keys = [SavedClass("", "Mul", "float32", (25,), place) for place in range(4)]
    records = []
    for place, key in enumerate(keys):
        again = (Option("recompute", 0, 0.1, needs=(keys[place - 1],)),) if place else ()
        options = (Option("keep", 100), *again)
        records.append(Record(key, 100, place, place, 9.0 - place, 9.5 - place, options))
    table = Problem(tuple(records), 400).table

    def peak(*choice: int) -> float:
        return pressure(table, np.array(choice), 400).least

    assert peak(0, 0, 0, 1) == 400  # made of what is there
    assert peak(0, 1, 1, 1) == 300  # the first, the last, and what that is made of, one after the other
    assert peak(0, 0, 1, 1) == 400
    assert peak(0, 1, 0, 1) == 300
    assert solve(Problem(tuple(records), 300)).status == "planned"
    assert solve(Problem(tuple(records), 299)).status == "impossible"


def test_what_is_needed_for_something_that_is_needed_counts_too() -> None:
    """The second of four tensors, of which the third is made, is larger than the others."""
    keys = [SavedClass("", "Mul", "float32", (25,), place) for place in range(4)]
    records = []
    for place, nbytes in enumerate((100, 300, 100, 100)):
        again = (Option("recompute", 0, 0.1, needs=(keys[place - 1],)),) if place else ()
        options = (Option("keep", nbytes), *again)
        records.append(Record(keys[place], nbytes, place, place, 9.0 - place, 9.5 - place, options))
    held = pressure(Problem(tuple(records), 1000).table, np.array((0, 1, 1, 1)), 1000).held
    assert held.tolist() == [100, 100, 100, 100, 500, 500, 400, 100]


def test_what_is_made_of_what_a_retained_graph_has_used_brings_that_back_once_more() -> None:
    keys = [SavedClass("", "Mul", "float32", (25,), place) for place in range(2)]
    options = Option("keep", 100), Option("recompute", 0, 0.01, needs=(keys[0],))
    for used, expected in ((None, [100, 100, 200]), (5.5, [100, 100, 100, 200, 0]), (6.5, [100, 100, 200, 0])):
        first = Record(keys[0], 100, 0.0, 1.0, 5.0, 9.0, (options[0], Option("compress", 0, 0.1)), used)
        second = Record(keys[1], 100, 2.0, 3.0, 6.0, 9.0, options, used and 6.5)
        held = pressure(Problem((first, second), 1000).table, np.array((1, 1)), 1000).held
        assert held.tolist() == expected
