"""From step to step: measure at the floor, plan, try, hold."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from tensorstash.abilities import Ranks
from tensorstash.engine.planned.agreement import Agreement
from tensorstash.engine.planned.step import Step, records
from tensorstash.engine.planned.trial import ROUNDS, Candidate, fastest, place_of, share_of_stores
from tensorstash.planner.decision import Decision, Measured, decide
from tensorstash.planner.model import Problem, SavedClass
from tensorstash.planner.plan import BudgetPlan
from tensorstash.sizes import format_bytes

_SIGNATURES = 16
"""Shapes whose plans are remembered."""

_SHRINKS = 4
_OVER = 1.01


class Held:
    """What is known of the steps of one signature.

    Args:
        measured: one of them.
        decision: what becomes of them.
    """

    def __init__(self, measured: Measured, decision: Decision) -> None:
        self.measured = measured
        self.decision = decision
        self.candidates = {name: Candidate(plan, left=decision.left(name)) for name, plan in decision.plans().items()}
        self.plan: BudgetPlan = next(iter(self.candidates.values())).plan
        self._in_order = list(self.candidates.values())
        self.steps = 0

    @property
    def is_trial(self) -> bool:
        """Whether plans are still being compared."""
        return len(self.candidates) > 1

    @property
    def candidate(self) -> Candidate:
        """The plan in force."""
        return self._in_order[place_of(self.steps, len(self._in_order))]


class Control:
    """Decides what becomes of each class of saved tensors. Used by the thread that runs the steps.

    Args:
        ranks: returns the processes that train together; None for one that is alone.
        say: tells the user what cannot be helped.
    """

    def __init__(self, ranks: Callable[[], Ranks | None], say: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._say = say
        self._agreement: Agreement | None = None
        self._steps = 0
        """Steps that have begun."""
        self._known: OrderedDict[Hashable, Held] = OrderedDict()
        self.current: Held | None = None
        """The plan in force; None while a step is measured."""
        self._candidate: Candidate | None = None
        self.newest: Held | None = None
        self.is_declined = False
        """Whether everything fits, in all steps that are known: those of two kinds may begin alike."""

    @property
    def is_waiting(self) -> bool:
        """Whether a step was measured, and the processes of the training have still to decide."""
        return self.newest is None and self._agreement is not None

    def begin(self, signature: Hashable) -> None:
        """Choose the plan for a step by the first tensor that it saves."""
        self._steps += 1
        found = None if self._agreement is None else self._agreement.look(signature, self._steps)
        if found is not None:
            self._hold(signature, Held(*found))
        current = self._known.get(signature)
        if current is not None:
            self.newest = current
            self._known.move_to_end(signature)
        self._follow(current)

    def _follow(self, held: Held | None) -> None:
        """Let a plan be in force. What is asked for each tensor is looked up here."""
        self.current = held
        self._candidate = None if held is None else held.candidate
        self.is_declined = held is not None and all(one.plan.status == "declined" for one in self._known.values())

    def tier(self, key: SavedClass) -> str | None:
        """Return the tier of a class; None if it is not known, so that it is made as small as can be."""
        return None if self._candidate is None else self._candidate.tiers.get(key)

    def left(self, key: SavedClass) -> float | None:
        """Return which part of a class's bytes codecs are counted on to leave in memory; None if none are."""
        return None if self._candidate is None else self._candidate.left.get(key)

    @property
    def slack(self) -> int:
        """Bytes of the budget that the plan in force leaves free."""
        assert self._candidate is not None, "no plan is in force"
        plan = self._candidate.plan
        return plan.budget - plan.peak

    def next_bytes(self, place: int) -> int | None:
        """Return how many bytes the tensor of a place in the step has; None if that is not known."""
        if self.current is None or place >= len(self.current.measured.upcoming):
            return None
        return self.current.measured.upcoming[place]

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
        self._follow(None)
        if self._agreement is not None:
            self._agreement.drop(signature)

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
            self._plan(signature, step, *room)
            return
        if step.surprises > len(step.seen) // 10:
            self.forget(signature)
            return
        candidate = held.candidate
        candidate.seconds.append(step.wall_ended - step.wall)
        is_over = step.overran or peak + room[1] > _OVER * held.decision.asked
        candidate.overran |= is_over
        held.steps += 1
        learned = held.decision.with_left(_left_of(step)) if is_over else None
        if learned is not None:
            self._decide(signature, held, learned)
        elif held.is_trial:
            if held.steps >= ROUNDS * len(held.candidates):
                share = share_of_stores(held.decision, held.candidates)
                self._decide(signature, held, held.decision.settled(fastest(held.candidates), share))
        elif is_over and held.plan.status == "planned" and held.decision.shrinks < _SHRINKS:
            decision = held.decision.tighter(peak + room[1])
            if decision is not None:
                self._decide(signature, held, decision)

    def _plan(self, signature: Hashable, step: Step, budget: int, background: int) -> None:
        if self._agreement is not None and self._agreement.knows(signature):
            return  # a decision is under way
        made, aliases = records(step)
        problem = Problem(made, max(budget, 1), background, step.ended - step.began)
        measured = Measured(problem, aliases, tuple(seen.nbytes for seen in step.seen), dict(step.sizes))
        self._find_ranks()
        if self._agreement is None or self._agreement.is_lost:
            self._hold(signature, Held(measured, decide(measured)))
        else:
            self._agreement.tell(signature, measured, self._steps + 1)

    def _find_ranks(self) -> None:
        ranks = self._ranks() if self._agreement is None else None
        if ranks is not None:
            self._agreement = Agreement(ranks, self._say)

    def _decide(self, signature: Hashable, held: Held, decision: Decision) -> None:
        if self._agreement is not None and self._agreement.knows(signature):
            self._agreement.propose(signature, decision, self._steps + 1)
        else:
            self._hold(signature, Held(held.measured, decision))

    def _hold(self, signature: Hashable, held: Held) -> None:
        if held.plan.status == "impossible":
            self._say(
                f"the budget cannot be held: {held.plan.summary.splitlines()[0]}. Everything is made as small as it "
                f"can be; allow more tiers, or save less at a time (smaller batches)"
            )
        self._known[signature] = held
        self._known.move_to_end(signature)
        while len(self._known) > _SIGNATURES:
            self._known.popitem(last=False)
        self.newest = held
        self._follow(self.current)


def _left_of(step: Step) -> dict[SavedClass, tuple[str, float]]:
    """Return of each class its tier, and the part of its bytes that codecs have left."""
    return {seen.key: (seen.tier, seen.left / seen.nbytes) for seen in step.seen if seen.left and seen.nbytes}
