"""The plan for a step: what is cheapest, given back until the memory is just held.

A search over prices (:mod:`tensorstash.planner.market`); then single decisions are changed, the dearest first, as long
as the rest holds the budget. :mod:`tensorstash.planner.bound` says how far from the best the result may be.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tensorstash.planner.market import Market
from tensorstash.planner.model import KEEP, Ints, Problem, Table
from tensorstash.planner.pressure import MOVING, Pressure, pressure

Status = Literal["declined", "planned", "impossible"]

_FEW = 10
"""Records that are so few that every pair of decisions is tried."""

_SMALL = 256
"""Records that are few enough to take time over each."""

_EXCHANGES, _EXCHANGES_EACH = 2000, 20
_HEAT = 0.01
"""How many random changes are tried where records are few and the program waits for links, in all and for each record,
and what part of the price the first of them may add."""

_TRIES, _TRIES_LARGE = 90, 30
"""Changes that are tried in the end, for few records and for more than :data:`_SMALL`."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What becomes of each record.

    Args:
        choice: the place of an option among those of each record.
        status: ``"declined"`` if everything fits, ``"impossible"`` if nothing makes it fit; then it is the smallest.
        peak: predicted bytes at the worst point, background included, after waiting.
        least: the smallest budget that any plan found can hold, background included.
        native: bytes at the worst point if everything is kept, background included.
        seconds: predicted to be added to the step.
        stall_s: those of them for which the program waits for links.
    """

    choice: tuple[int, ...]
    status: Status
    peak: int
    least: int
    native: int
    seconds: float
    stall_s: float


def solve(problem: Problem) -> Solution:
    """Return the cheapest plan found.

    Args:
        problem: the step.

    >>> from tensorstash.planner.model import Option, Record, SavedClass
    >>> options = Option("keep"), Option("compress", resident=40, seconds=0.1)
    >>> keys = [SavedClass("", "Mul", "float32", (5, 5), place) for place in range(3)]
    >>> records = tuple(Record(k, 100, p, p + 1.0, 9.0 - p, 9.5 - p, options) for p, k in enumerate(keys))
    >>> solve(Problem(records, budget=250)).choice, solve(Problem(records, budget=300)).status
    ((1, 0, 0), 'declined')
    """
    table = problem.table
    keep = np.zeros(table.count, np.int64)
    native = pressure(table, keep, problem.room)
    floors = [smallest(table), smallest(table, links=False), smallest(table, made=False)]
    outcomes = [(choice, pressure(table, choice, problem.room)) for choice in floors]
    floor, at_floor = min([*outcomes, (keep, native)], key=lambda outcome: outcome[1].least)
    least = at_floor.least

    def solution(choice: Ints, found: Pressure, status: Status) -> Solution:
        peak = max(min(float(found.held.max(initial=0.0)), float(problem.room)), found.least)
        return Solution(
            tuple(choice.tolist()),
            status,
            round(peak) + problem.background,
            round(min(least, found.least)) + problem.background,
            round(native.least) + problem.background,
            found.seconds + found.stall_s,
            found.stall_s,
        )

    if native.excess <= 0:
        return solution(keep, native, "declined")
    best, found = floor, at_floor
    market = Market(table, problem.room)
    market.search()
    if market.best is not None:
        choice = _improved(table, problem.room, market.best)
        outcome = pressure(table, choice, problem.room)
        if outcome.price < found.price:
            best, found = choice, outcome
    if found.excess <= 0 < found.stall_s and table.count <= _SMALL:
        best = _annealed(table, problem.room, best, found.price)
        found = pressure(table, best, problem.room)
    if table.count <= _FEW:
        best = _exchanged(table, problem.room, best, found)
        found = pressure(table, best, problem.room)
    return solution(best, found, "planned" if found.excess <= 0 else "impossible")


def uniform(problem: Problem, tier: str) -> Ints:
    """Return the choice that gives every record the option of one tier, where it has it.

    Args:
        problem: the step.
        tier: name of the options.
    """
    places = (
        next((place for place, option in enumerate(record.options) if option.tier == tier), 0)
        for record in problem.records
    )
    return np.fromiter(places, np.int64, len(problem.records))


def trivial(problem: Problem) -> dict[str, Ints]:
    """Return the plans that need no planner, of one tier each, that hold the budget."""
    tiers = dict.fromkeys([KEEP, *(option.tier for record in problem.records for option in record.options)])
    plans = {tier: uniform(problem, tier) for tier in tiers}
    return {tier: choice for tier, choice in plans.items() if pressure(problem.table, choice, problem.room).excess <= 0}


def smallest(table: Table, *, links: bool = True, made: bool = True) -> Ints:
    """Return the choice that leaves the fewest bytes of each record; of equal ones, the cheapest.

    Args:
        table: of the records.
        links: whether it may use them.
        made: whether it may choose what others come back for.
    """
    usable = np.isfinite(table.seconds) & (links | (table.link < 0)) & (made | ~table.is_made)
    weight = table.resident + np.where(usable, 0.0, np.inf)
    weight[:, 0] = table.nbytes
    time = table.seconds + table.out_s + table.back_s
    least = weight.min(axis=1, keepdims=True)
    choice: Ints = np.where(weight <= least, time, np.inf).argmin(axis=1).astype(np.int64)
    # Nothing is gained by sending away what is wanted again at once.
    choice[table.wanted <= table.freed] = 0
    return choice


def price_of_memory(problem: Problem, solution: Solution) -> float:
    """Return the seconds of a step that one more byte saves, from a plan for somewhat more memory.

    Args:
        problem: the step.
        solution: of it.
    """
    if solution.status == "declined":
        return 0.0
    more = max(problem.room // 10, 1)
    richer = solve(replace(problem, budget=problem.budget + more))
    return max(solution.seconds - richer.seconds, 0.0) / more


def _improved(table: Table, room: float, choice: Ints) -> Ints:
    """Change single decisions for cheaper options, the dearest first, as long as the rest holds the memory."""
    tries = _TRIES if table.count <= _SMALL else _TRIES_LARGE
    found = pressure(table, choice, room)
    price = found.price
    if found.in_vain.any():
        changed = np.where(found.in_vain, 0, choice)
        outcome = pressure(table, changed, room).price
        if outcome <= price:
            choice, price = changed, outcome
    for relieve in (True, False):
        found = pressure(table, choice, room)
        if relieve and not found.stall_s:
            continue
        for row, place in _changes(table, choice, room - float(found.held.max(initial=0.0)), relieve=relieve)[:tries]:
            changed = choice.copy()
            changed[row] = place
            outcome = pressure(table, changed, room, price).price
            if outcome < price - 1e-12:
                choice, price = changed, outcome
    return choice


def _changes(table: Table, choice: Ints, slack: float, *, relieve: bool) -> list[tuple[int, int]]:
    """Return changes of one decision each: for shorter queues, the last in the queue first; else for fewer seconds."""
    rows = table.rows
    here = rows, choice
    usable = np.isfinite(table.seconds)
    if relieve:
        queued = table.link[here] >= 0
        row, place = np.nonzero(queued[:, None] & usable & (table.link < 0))
        order = np.lexsort((table.seconds[row, place], -table.freed[row]))
    else:
        price = table.seconds + MOVING * (table.out_s + table.back_s)
        left = np.where(np.arange(table.width) == 0, table.nbytes[:, None], table.resident)
        gain = price[here][:, None] - price
        more = left - left[here][:, None]
        row, place = np.nonzero((gain > 0) & usable & ((more <= slack) | (table.count <= 64)))
        order = np.argsort(-gain[row, place], kind="stable")
    return list(zip(row[order].tolist(), place[order].tolist(), strict=True))


def _annealed(table: Table, room: float, choice: Ints, price: float) -> Ints:
    """Change one or two decisions at random, at first even if that is a little dearer; always the same ones.

    What the program waits for is the worst of all moments, so that single changes hardly ever make it shorter.
    """
    rng = np.random.default_rng(0)
    places = [np.flatnonzero(usable) for usable in np.isfinite(table.seconds)]
    best, least, now = choice, price, price
    exchanges = min(_EXCHANGES, _EXCHANGES_EACH * table.count)
    for left in range(exchanges, 0, -1):
        changed = choice.copy()
        for row in rng.integers(0, table.count, rng.integers(1, 3)):
            changed[row] = rng.choice(places[row])
        outcome = pressure(table, changed, room).price
        if outcome <= now + _HEAT * least * left / exchanges * rng.exponential():
            choice, now = changed, outcome
            if now < least:
                best, least = choice, now
    return best


def _exchanged(table: Table, room: float, choice: Ints, found: Pressure) -> Ints:
    """Change two decisions at a time, where they are few; what is short of memory first gets nearer to its room."""
    usable = np.isfinite(table.seconds)
    rank = max(found.excess, 0.0), found.price
    improved = True
    while improved:
        improved = False
        for first in range(table.count):
            for second in range(first):
                for one in np.flatnonzero(usable[first]):
                    for other in np.flatnonzero(usable[second]):
                        changed = choice.copy()
                        changed[first], changed[second] = one, other
                        outcome = pressure(table, changed, room)
                        now = max(outcome.excess, 0.0), outcome.price
                        if now < (rank[0], rank[1] * (1 - 1e-9)):
                            choice, rank, improved = changed, now, True
    return choice
