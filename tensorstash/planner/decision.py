"""What a measured step becomes: one plan, or a few that are to be compared on the clock."""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, Self
from zlib import compress, decompress

import numpy as np

from tensorstash.planner.model import STORES, Option, Problem, Record, SavedClass
from tensorstash.planner.plan import BudgetPlan, planned
from tensorstash.planner.pressure import Pressure, pressure
from tensorstash.planner.solve import Solution, Status, solve, trivial

PLAN, BEFORE = "plan", "before"

_RIVALS = 2
"""Plans of one tier that the plan is compared with."""

_WORTH_TRYING = 0.25
"""Part of a step that a plan of one tier may be predicted to cost more than the plan, and is tried all the same."""

_WORTH_CHANGING = 0.01
"""Part of a step by which a new plan has to be predicted to be faster than the one that was."""

_FEWER = 0.98
_SHRINKS = 4

_TELLING = 0.02
"""Part of a tensor's bytes by which more of it has to be left than was planned to plan anew."""


@dataclass(frozen=True)
class Measured:
    """A step that was measured.

    Args:
        problem: it, to be planned.
        aliases: classes that share the memory of a record's.
        upcoming: bytes of its tensors, in the order in which they are saved.
        sizes: how many tensors of so many bytes it has packed.
    """

    problem: Problem
    aliases: Mapping[SavedClass, SavedClass]
    upcoming: tuple[int, ...]
    sizes: Mapping[int, int]

    @property
    def options(self) -> dict[SavedClass, tuple[Option, ...]]:
        """What may become of each record, by its class."""
        return {record.key: record.options for record in self.problem.records}

    @property
    def structure(self) -> str:
        """Digits that are equal on all processes that save the same, whatever the clocks say."""
        kinds = [(record.key, record.nbytes) for record in self.problem.records]
        text = json.dumps([kinds, sorted(self.aliases.items())])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Decision:
    """Plans for a step; the first one is the planner's, and stays unless another is faster.

    Args:
        problem: what was planned.
        solution: of it.
        aliases: classes that share the memory of a record's.
        choices: an option for each record, by the name of the plan.
        asked: bytes of the budget that the user has given.
        shrinks: how often the plan was made smaller because more was held than it said.
        ranks: that share it; empty for a process that plans alone.
        is_learned: whether it was planned anew by what plans took that were tried.
    """

    problem: Problem
    solution: Solution
    aliases: Mapping[SavedClass, SavedClass]
    choices: Mapping[str, tuple[int, ...]]
    asked: int
    shrinks: int = 0
    ranks: tuple[int, ...] = ()
    is_learned: bool = False

    def plans(self) -> dict[str, BudgetPlan]:
        """Return the plans by name."""
        return {name: self._plan(choice) for name, choice in self.choices.items()}

    def _plan(self, choice: tuple[int, ...]) -> BudgetPlan:
        problem, solution = self.problem, self.solution
        if choice != solution.choice:
            found = pressure(problem.table, np.array(choice, np.int64), problem.room)
            peak = round(min(float(np.max(found.held, initial=0.0)), problem.room)) + problem.background
            solution = replace(solution, choice=choice, seconds=found.cost, stall_s=found.stall_s, peak=peak)
        return replace(planned(problem, solution, self.aliases), budget=self.asked, ranks=self.ranks)

    def tighter(self, peak: int) -> Self | None:
        """Return another plan, for less than there is; None if no other holds less, or it has become less often enough.

        Args:
            peak: bytes that were held, background included.
        """
        problem = self.problem
        budget, part = problem.budget, min(_FEWER, self.asked / max(peak, 1))
        while budget > self.solution.least and self.shrinks < _SHRINKS:
            budget, part = max(round(budget * part), self.solution.least), _FEWER
            less = replace(problem, budget=budget)
            solution = solve(less)
            if solution.status == "impossible":
                return None
            # A few large tensors fit into a little less as well: then nothing would be other than it was.
            if solution.choice not in self.choices.values():
                choices = {PLAN: solution.choice}
                return replace(self, problem=less, solution=solution, choices=choices, shrinks=self.shrinks + 1)
        return None

    def as_held(self, peak: int, *, is_over: bool) -> Self:
        """Return the decision with what was seen of it: whether it holds the budget, whatever was predicted.

        Args:
            peak: bytes that were held, background included.
            is_over: whether that is too much.
        """
        least = max(self.solution.least, peak) if is_over else min(self.solution.least, self.asked)
        status: Status = "impossible" if is_over else "planned"
        return replace(self, solution=replace(self.solution, status=status, least=least))

    def without(self, name: str, peak: int) -> Self:
        """Return the decision without a plan that was tried and held too much; in place of the planner's, one for less.

        Args:
            name: of the plan, which is not the only one.
            peak: bytes that were held, background included.
        """
        others = {other: choice for other, choice in self.choices.items() if other != name}
        less = self.tighter(peak) if name == PLAN else None
        if less is None:
            return replace(self, choices=others)
        table, room = less.problem.table, less.problem.room
        fits = {other: pressure(table, np.array(choice), room).excess <= 0 for other, choice in others.items()}
        return replace(less, choices={**less.choices, **{other: others[other] for other in others if fits[other]}})

    def with_left(self, left: Mapping[SavedClass, tuple[str, float]]) -> Self | None:
        """Return what is decided where codecs leave more of some classes than was planned; None if they do not.

        A class that differs from others by its place alone is taken to shrink as little as they do: otherwise each of
        them would have its turn to overrun.

        Args:
            left: of each class its tier, and the part of its bytes that this has left.
        """
        parts: dict[Hashable, dict[str, float]] = {}
        for key, (tier, part) in left.items():
            known = parts.setdefault(self.aliases.get(key, key).kind, {})
            known[tier] = max(part, known.get(tier, 0.0))
        records = tuple(_with_left(record, parts.get(record.key.kind, {})) for record in self.problem.records)
        if records == self.problem.records:
            return None
        problem = replace(self.problem, records=records)
        solution = solve(problem)
        return replace(self, problem=problem, solution=solution, choices={PLAN: solution.choice})

    def left(self, name: str) -> dict[SavedClass, float]:
        """Return which part of a class's bytes one of the plans counts on codecs to leave in memory."""
        chosen = zip(self.problem.records, self.choices[name], strict=True)
        away = ((record, record.options[place]) for record, place in chosen if place)
        parts = {
            record.key: option.resident / record.nbytes
            for record, option in away
            if option.resident and option.link not in STORES
        }
        return parts | {key: parts[owner] for key, owner in self.aliases.items() if owner in parts}

    def found(self, name: str) -> Pressure:
        """Return what one of the plans does to memory and time."""
        return pressure(self.problem.table, np.array(self.choices[name], np.int64), self.problem.room)

    def settled(self, name: str, share: float) -> Self:
        """Return the decision for one of the plans that were compared, beside a new one if that should be cheaper.

        The new one has only the tiers that were in them, and is tried in turn. There is none a second time.

        Args:
            name: of the plan that was the fastest.
            share: of the seconds for which a store is occupied, by which the step was longer than predicted.
        """
        only = {name: self.choices[name]}
        if not share or self.is_learned:
            return replace(self, choices=only)
        problem = _dearer(self.problem, share)
        found = solve(_without(problem, self._untried()))
        # What was not tried is there all the same, where the budget comes to be too small.
        least = min(found.least, self.solution.least)
        solution = replace(found, status=self.solution.status, least=least)
        settled = replace(self, problem=problem, solution=solution, choices=only, is_learned=True)
        if found.status != "planned" or solution.choice in self.choices.values():
            return settled
        gain = settled.found(name).cost - solution.seconds
        is_better = gain > _WORTH_CHANGING * problem.step_s
        return replace(settled, choices={PLAN: solution.choice, BEFORE: only[name]}) if is_better else settled

    def _untried(self) -> set[str]:
        """Return the tiers that none of the plans uses: what they do was predicted, and never seen."""
        records = self.problem.records
        tried = {
            record.options[place].tier
            for choice in self.choices.values()
            for record, place in zip(records, choice, strict=True)
        }
        return {option.tier for record in records for option in record.options[1:]} - tried

    def to_text(self) -> str:
        """Return the decision as text, for other processes."""
        plain = {
            "records": [_plain(record) for record in self.problem.records],
            "problem": [self.problem.budget, self.problem.background, self.problem.step_s],
            "solution": asdict(self.solution),
            "aliases": list(self.aliases.items()),
            "choices": list(self.choices.items()),
            "rest": [self.asked, self.shrinks, self.ranks, self.is_learned],
        }
        return b64encode(compress(json.dumps(plain).encode())).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Return what :meth:`to_text` has made into text."""
        plain = json.loads(decompress(b64decode(text)))
        problem = Problem(tuple(_record(*row) for row in plain["records"]), *plain["problem"])
        solution = Solution(**{**plain["solution"], "choice": tuple(plain["solution"]["choice"])})
        aliases = {_key(key): _key(owner) for key, owner in plain["aliases"]}
        choices = {name: tuple(choice) for name, choice in plain["choices"]}
        asked, shrinks, ranks, is_learned = plain["rest"]
        return cls(problem, solution, aliases, choices, asked, shrinks, tuple(ranks), is_learned)


def decide(measured: Measured, ranks: Sequence[int] = ()) -> Decision:
    """Return the cheapest plan of a measured step, and what it is to be compared with.

    Args:
        measured: the step.
        ranks: that share the decision.
    """
    problem = measured.problem
    solution = solve(problem)
    choices = {PLAN: solution.choice, **(_rivals(problem, solution) if solution.status == "planned" else {})}
    return Decision(problem, solution, measured.aliases, choices, problem.budget, ranks=tuple(ranks))


def _rivals(problem: Problem, solution: Solution) -> dict[str, tuple[int, ...]]:
    found = []
    for tier, choice in trivial(problem).items():
        cost = pressure(problem.table, choice, problem.room).cost
        if cost <= solution.seconds + _WORTH_TRYING * problem.step_s and tuple(choice) != solution.choice:
            found.append((cost, tier, tuple(choice.tolist())))
    return {tier: choice for _, tier, choice in sorted(found)[:_RIVALS]}


def _dearer(problem: Problem, share: float) -> Problem:
    """Return a step in which whatever goes to a store also costs a share of the seconds for which it occupies that."""

    def dearer(option: Option) -> Option:
        is_carried = option.link in STORES
        return replace(option, seconds=option.seconds + share * (option.out_s + option.back_s) * is_carried)

    records = (replace(record, options=tuple(map(dearer, record.options))) for record in problem.records)
    return replace(problem, records=tuple(records))


def _without(problem: Problem, tiers: Set[str]) -> Problem:
    """Return a step in which some tiers are never worth it; options keep their places."""

    def barred(option: Option) -> Option:
        return replace(option, seconds=inf) if option.tier in tiers else option

    records = (replace(record, options=tuple(map(barred, record.options))) for record in problem.records)
    return replace(problem, records=tuple(records))


def _with_left(record: Record, parts: Mapping[str, float]) -> Record:
    """Return a record of which tiers in memory leave at least these parts of the bytes."""

    def corrected(option: Option) -> Option:
        left = 0 if option.link in STORES else round(parts.get(option.tier, 0.0) * record.nbytes)
        return replace(option, resident=left) if left - option.resident > _TELLING * record.nbytes else option

    return replace(record, options=tuple(map(corrected, record.options)))


def _plain(record: Record) -> list[Any]:
    options = [[o.tier, o.resident, o.seconds, o.link, o.out_s, o.back_s, o.needs] for o in record.options]
    times = record.saved, record.freed, record.wanted, record.released
    return [record.key, record.nbytes, *times, options, record.used]


def _record(key: list[Any], nbytes: int, *rest: Any) -> Record:
    saved, freed, wanted, released, options, used = rest
    read = (replace(Option(*option), needs=tuple(map(_key, needs))) for *option, needs in options)
    return Record(_key(key), nbytes, saved, freed, wanted, released, tuple(read), used)


def _key(plain: list[Any]) -> SavedClass:
    module, producer, dtype, shape, ordinal = plain
    return SavedClass(module, producer, dtype, tuple(shape), ordinal)
