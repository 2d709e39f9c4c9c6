"""From step to step: measure at the floor, plan, try, hold."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tensorstash.engine.planned.step import Step, records
from tensorstash.planner.model import Ints, Problem, SavedClass, pressure
from tensorstash.planner.plan import BudgetPlan, planned
from tensorstash.planner.solve import Solution, solve, trivial
from tensorstash.sizes import format_bytes

_SIGNATURES = 16
"""Shapes whose plans are remembered."""

_RUNS = 2
"""Steps for which each of the plans that are compared is tried."""

_RIVALS = 2
"""Plans of one tier that the plan is compared with."""

_WORTH_TRYING = 0.25
"""Part of a step that a plan of one tier may be predicted to cost more than the plan, and is tried all the same."""

_SHRINKS = 4
_OVER = 1.01


@dataclass
class _Candidate:
    name: str
    tiers: Mapping[SavedClass, str]
    plan: BudgetPlan
    seconds: list[float] = field(default_factory=list)
    overran: bool = False


@dataclass
class Held:
    """What is known of the steps of one signature."""

    problem: Problem
    plan: BudgetPlan
    candidates: list[_Candidate]
    upcoming: list[int]
    """Bytes of the tensors of a step, in the order in which they are saved."""
    sizes: Mapping[int, int]
    steps: int = 0
    shrinks: int = 0
    overran: int = 0

    @property
    def is_trial(self) -> bool:
        """Whether plans are still being compared."""
        return len(self.candidates) > 1

    @property
    def candidate(self) -> _Candidate:
        """The plan in force."""
        return self.candidates[self.steps % len(self.candidates)]


class Control:
    """Decides what becomes of each class of saved tensors. Used by the thread that runs the steps.

    Args:
        say: tells the user what cannot be helped.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: OrderedDict[Hashable, Held] = OrderedDict()
        self.current: Held | None = None
        """The plan in force; None while a step is measured."""
        self.newest: Held | None = None

    @property
    def is_declined(self) -> bool:
        """Whether everything fits."""
        return self.current is not None and self.current.plan.status == "declined"

    def begin(self, signature: Hashable) -> None:
        """Choose the plan for a step by the first tensor that it saves."""
        self.current = self._known.get(signature)
        if self.current is not None:
            self.newest = self.current
            self._known.move_to_end(signature)

    def tier(self, key: SavedClass) -> str | None:
        """Return the tier of a class; None if it is not known, so that it is made as small as can be."""
        return None if self.current is None else self.current.candidate.tiers.get(key)

    def next_bytes(self, place: int) -> int | None:
        """Return how many bytes the tensor of a place in the step has; None if that is not known."""
        if self.current is None or place >= len(self.current.upcoming):
            return None
        return self.current.upcoming[place]

    def explain(self) -> str:
        """Return what to do where memory runs out all the same."""
        plan = None if self.newest is None else self.newest.plan
        if plan is None:
            return "budget: memory ran out before the first step was measured; save less at a time (smaller batches)"
        return (
            f"budget: memory ran out under a plan for {format_bytes(plan.budget)}; the smallest budget that it "
            f"believes in is {format_bytes(plan.least)}, {format_bytes(plan.background)} of which no decision changes; "
            f"give a smaller budget than now, or save less at a time (smaller batches)"
        )

    def forget(self, signature: Hashable) -> None:
        """Measure the next step of a signature anew."""
        self._known.pop(signature, None)
        self.current = None

    def end(self, step: Step, peak: int, room: tuple[int, int]) -> None:
        """Learn from a step.

        Args:
            step: that is over.
            peak: most bytes held in it.
            room: the bytes of the budget, and those among them that no decision changes.
        """
        signature, held = step.signature, self.current
        if signature is None:
            return
        if held is None:
            self._plan(step, *room)
            return
        if step.surprises > len(step.seen) // 10:
            self.forget(signature)
            return
        candidate = held.candidate
        candidate.seconds.append(step.wall_ended - step.wall)
        candidate.overran |= step.overran or peak > _OVER * held.problem.budget
        held.steps += 1
        if held.is_trial:
            if held.steps >= _RUNS * len(held.candidates):
                self._choose(held)
        elif candidate.overran:
            candidate.overran = False
            self._shrink(held, peak)

    def _plan(self, step: Step, budget: int, background: int) -> None:
        made, aliases = records(step)
        problem = Problem(made, max(budget, 1), background, step.ended - step.began)
        solution = solve(problem)
        plan = planned(problem, solution, aliases)
        held = Held(problem, plan, [], [seen.nbytes for seen in step.seen], dict(step.sizes))
        held.candidates = [_Candidate("plan", plan.tiers, plan), *self._rivals(problem, solution, aliases, plan)]
        if plan.status == "impossible":
            self._say(
                f"the budget cannot be held: {plan.summary.splitlines()[0]}. Everything is made as small as it can be; "
                f"allow more tiers, or save less at a time (smaller batches)"
            )
        self._known[step.signature] = held
        self._known.move_to_end(step.signature)
        while len(self._known) > _SIGNATURES:
            self._known.popitem(last=False)
        self.newest = held

    def _rivals(
        self, problem: Problem, solution: Solution, aliases: Mapping[SavedClass, SavedClass], plan: BudgetPlan
    ) -> list[_Candidate]:
        if plan.status != "planned":
            return []
        found = []
        for tier, choice in trivial(problem).items():
            outcome = pressure(problem.table, choice, problem.room)
            if outcome.cost <= solution.seconds + _WORTH_TRYING * problem.step_s and tuple(choice) != solution.choice:
                found.append((outcome.cost, tier, choice))
        return [
            _Candidate(tier, _with(problem, solution, choice, aliases).tiers, _with(problem, solution, choice, aliases))
            for _, tier, choice in sorted(found, key=lambda row: row[:2])[:_RIVALS]
        ]

    @staticmethod
    def _choose(held: Held) -> None:
        fitting = [one for one in held.candidates if not one.overran] or held.candidates[:1]
        best = min(fitting, key=lambda one: min(one.seconds))
        held.candidates = [best]
        held.plan = replace(best.plan, status="planned")

    def _shrink(self, held: Held, peak: int) -> None:
        """Plan for less than there is, since more was held than was predicted; never for more again."""
        held.overran += 1
        if held.shrinks >= _SHRINKS or held.plan.status != "planned":
            return
        held.shrinks += 1
        factor = min(0.98, held.problem.budget / max(peak, 1))
        tighter = replace(held.problem, budget=max(round(held.problem.budget * factor), held.plan.least))
        solution = solve(tighter)
        if solution.status == "impossible":
            return
        aliases = {row.key: row.key for row in held.plan.rows if not row.nbytes}
        plan = planned(tighter, solution, {})
        shared = {key: tier for key, tier in held.plan.tiers.items() if key in aliases}
        held.problem, held.plan = tighter, replace(plan, budget=held.plan.budget)
        held.candidates = [_Candidate("plan", {**shared, **plan.tiers}, held.plan)]


def _with(problem: Problem, solution: Solution, choice: Ints, aliases: Mapping[SavedClass, SavedClass]) -> BudgetPlan:
    outcome = pressure(problem.table, choice, problem.room)
    peak = round(min(float(np.max(outcome.held, initial=0.0)), problem.room)) + problem.background
    changed = replace(solution, choice=tuple(choice.tolist()), seconds=outcome.cost, stall_s=outcome.stall_s, peak=peak)
    return planned(problem, changed, aliases)
