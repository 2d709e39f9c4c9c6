"""The plan for a step: what is cheapest, given back until the memory is just held.

A search over prices: of a byte at the point where memory is shortest, and of a second of each link. At given prices
each record chooses for itself; links are for what forward lets go of first, since that has the longest way to hide.
Then single decisions are changed, the dearest first, as long as the rest holds the budget.
:mod:`tensorstash.planner.bound` says how far from the best the result may be.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tensorstash.planner.model import KEEP, MOVING, Ints, Pressure, Problem, Table, pressure

Status = Literal["declined", "planned", "impossible"]

_PARTS = 7
"""How many places in the forward pass are tried, up to which links are used."""

_LINK_PRICES = (MOVING, 0.03, 0.1, 0.3)
"""What a second of a link may cost: never more than the second of the step that waiting for it costs."""

_HALVINGS = 14

_TILT = 0.01

_FEW = 10
"""Records that are so few that every pair of decisions is tried."""

_LARGE = 2000
_TRIES, _TRIES_LARGE = 90, 40
"""Changes that are tried in the end, for few records and for more than :data:`_LARGE`."""

_SMALLER = (1.0, 0.95)
"""Parts of the room that are solved, too: a plan for less memory that costs less is one for more memory as well."""


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
    floors = [smallest(table), smallest(table, links=False), keep]
    floor = min(floors, key=lambda choice: pressure(table, choice, problem.room).least)
    at_floor = pressure(table, floor, problem.room)
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
    for part in _SMALLER:
        choice = _searched(table, problem.room * part)
        if choice is not None:
            outcome = pressure(table, choice, problem.room)
            if outcome.price < found.price:
                best, found = choice, outcome
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


def smallest(table: Table, *, links: bool = True) -> Ints:
    """Return the choice that leaves the fewest bytes of each record; of equal ones, the cheapest.

    Args:
        table: of the records.
        links: whether it may use them.
    """
    usable = np.isfinite(table.seconds) & (links | (table.link < 0))
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


def _searched(table: Table, room: float) -> Ints | None:
    """Return the best plan found: by prices of memory and of links, then by single changes."""
    asked = room
    for _ in range(3):
        market = _Market(table, asked)
        market.search()
        if market.best is None:
            return None
        found = pressure(table, market.best, room)
        if found.excess <= 0:
            return _improved(table, room, market.best)
        # Memory is short at another point than the one looked at.
        asked -= found.excess
    return None


class _Market:
    """Prices at which records choose for themselves: of memory at the worst point, and of seconds on links.

    Whatever the best plan is, nearly all of its records have chosen so: at most as many have not as there are
    constraints that bind.

    Args:
        table: of the records.
        room: bytes for the records.
    """

    def __init__(self, table: Table, room: float) -> None:
        self._table, self._room = table, room
        held = pressure(table, np.zeros(table.count, np.int64), room).held
        self._turn = turn = float(table.points[int(held.argmax())])
        there = (table.saved <= turn) & (turn < table.released)
        apart = there & (table.freed <= turn) & (table.wanted > turn)
        self._fixed = float(table.nbytes[there & ~apart].sum())
        rows = self._rows = np.flatnonzero(apart)
        # In the order in which forward lets go; backward mostly asks in the opposite one.
        self._rows = rows = rows[np.argsort(table.freed[rows], kind="stable")]
        self._nbytes = table.nbytes[rows]
        self._left = table.resident[rows].copy()
        self._left[:, 0] = self._nbytes
        self._seconds = table.seconds[rows]
        self._linked = table.link[rows] >= 0
        self._moves = table.out_s[rows] + table.back_s[rows]
        self._effort = np.where(np.isfinite(self._seconds), self._seconds, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            density = (self._effort + self._moves) / (self._nbytes[:, None] - self._left)
        found = density[np.isfinite(density) & (density > 0) & np.isfinite(self._seconds)]
        self._dearest = 4 * float(found.max(initial=1e-12))
        self._cheapest = float(found.min(initial=1e-12)) / 4
        # So that equal records do not all change their minds at one price: the first ones go first.
        self._tilt = 1 + _TILT * np.linspace(1, 0, len(rows))
        self._price = np.inf
        self.best: Ints | None = None

    def search(self) -> None:
        """Look for the cheapest choice among all prices."""
        count = len(self._rows)
        if not self._linked.any():
            self._priced(0, MOVING)
            return
        best: tuple[float, int, float] = (np.inf, 0, MOVING)
        for price in _LINK_PRICES:
            parts = np.unique(np.linspace(0, count, _PARTS).astype(int)).tolist()
            best = min(best, *((self._priced(part, price), part, price) for part in parts))
        step = count / (_PARTS - 1) / 2
        _, part, price = best
        while step >= max(count / 200, 0.5):
            near = [
                (self._priced(at, price), at, price)
                for at in (part - round(step), part + round(step))
                if 0 <= at <= count
            ]
            best = min(best, *near)
            part, step = best[1], step / 2

    def _priced(self, part: int, link_price: float) -> float:
        """Return the cost of the best choice where the first records may use links, at a price."""
        rate = np.full(len(self._rows), np.inf)
        rate[:part] = link_price
        with np.errstate(invalid="ignore"):
            offers = self._seconds + np.where(self._linked, rate[:, None] * self._moves, 0.0)
        offers = np.where(np.isnan(offers), np.inf, offers)
        weight = self._left * self._tilt[:, None]
        low, high = np.log(self._cheapest), np.log(self._dearest)
        best, _ = self._cost((offers + np.exp(high) * weight).argmin(axis=1))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            cost, is_short = self._cost((offers + np.exp(middle) * weight).argmin(axis=1))
            best = min(best, cost)
            low, high = (middle, high) if is_short else (low, middle)
        return best

    def _cost(self, chosen: Ints) -> tuple[float, bool]:
        """Return the cost of a choice by what memory is at the worst point, and whether it waits there."""
        table, rows, turn = self._table, self._rows, self._turn
        places = np.arange(len(rows))
        linked = self._linked[places, chosen]
        held = self._fixed + float(self._left[places, chosen].sum())
        seconds = float(self._effort[places, chosen].sum())
        stall = moving = 0.0
        is_short = held > self._room
        if linked.any():
            on, options = rows[linked], chosen[linked]
            out, nbytes = table.out_s[on, options], self._nbytes[linked]
            total = np.cumsum(out)
            leaves = np.maximum.accumulate(table.freed[on] - (total - out)) + total
            late = leaves > turn
            under_way = np.cumsum(nbytes[late])
            order = np.argsort(table.wanted[on], kind="stable")
            back = table.back_s[on, options][order]
            later = np.cumsum(back[::-1])[::-1]
            comes = np.minimum.accumulate((table.wanted[on][order] + (later - back))[::-1])[::-1] - later
            early = comes <= turn
            begun = np.cumsum(nbytes[order][early][::-1])
            moving = float(total[-1] + later[0])
            over = held + float(nbytes[late].sum() + nbytes[order][early].sum()) - self._room
            if over > 0:
                is_short = True
                if late.any():
                    place = int(np.searchsorted(under_way, min(over, under_way[-1])))
                    stall += float(leaves[late][min(place, late.sum() - 1)]) - turn
                    over -= float(under_way[-1])
                if over > 0 and early.any():
                    place = int(np.searchsorted(begun, min(over, begun[-1])))
                    stall += turn - float(comes[early][::-1][min(place, early.sum() - 1)])
                    over -= float(begun[-1])
                is_short_for_ever = over > 0.5
            else:
                is_short_for_ever = False
        else:
            is_short_for_ever = is_short
        if is_short_for_ever:
            return float("inf"), True
        cost = seconds + stall + MOVING * moving
        if cost < self._price:
            self._price = cost
            best = np.zeros(table.count, np.int64)
            best[rows] = chosen
            self.best = best
        return cost, is_short


def _improved(table: Table, room: float, choice: Ints) -> Ints:
    """Change single decisions for cheaper options, the dearest first, as long as the rest holds the memory."""
    tries = _TRIES if table.count <= _LARGE else _TRIES_LARGE
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
            outcome = pressure(table, changed, room).price
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
