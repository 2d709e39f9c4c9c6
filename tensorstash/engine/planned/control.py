"""From step to step: measure at the floor, plan, try, hold."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

from tensorstash.abilities import Ranks
from tensorstash.engine.planned.agreement import Agreement
from tensorstash.engine.planned.step import Step, records
from tensorstash.engine.planned.trial import ROUNDS, Candidate, fastest, place_of, share_of_stores
from tensorstash.planner.decision import Decision, Measured, decide
from tensorstash.planner.model import KEEP, Option, Problem, SavedClass
from tensorstash.planner.plan import BudgetPlan
from tensorstash.sizes import format_bytes

_SIGNATURES = 16
"""Shapes whose plans are remembered."""

_ALONE = 50
"""Steps of one kind after which others that began like it are forgotten."""

_KINDS = 8
"""Times as many classes as a step has: with more, those that begin alike are forgotten, and measured anew."""

_OVER = 1.01

_SURE = 4
"""Steps of a plan after which what it holds says whether it holds the budget."""


class Held:
    """What is known of the steps of one signature.

    Args:
        measured: one of them.
        decision: what becomes of them.
        besides: what plans said for others that began like it; a tensor that one of them moves is moved.
        options: what might become of the records of those.
    """

    def __init__(
        self,
        measured: Measured,
        decision: Decision,
        besides: Mapping[SavedClass, str] = MappingProxyType({}),
        options: Mapping[SavedClass, tuple[Option, ...]] = MappingProxyType({}),
    ) -> None:
        self.measured = measured
        self.decision = decision
        self.besides = besides
        self.options = {**options, **measured.options}
        """What may become of each record of any of them."""
        self.candidates = {name: Candidate(plan, left=decision.left(name)) for name, plan in decision.plans().items()}
        self.plan: BudgetPlan = next(iter(self.candidates.values())).plan
        self._in_order = list(self.candidates.values())
        self.steps = 0
        self.alone = 0
        """Steps since the last one that began like these and was another."""

    @property
    def is_declined(self) -> bool:
        """Whether everything fits."""
        return self.plan.status == "declined" and all(tier == KEEP for tier in self.besides.values())

    @property
    def tiers(self) -> Mapping[SavedClass, str]:
        """What becomes of each class now."""
        tiers = self.candidate.tiers
        if not self.besides:
            return tiers
        moved = {key: tier for key, tier in self.besides.items() if tier != KEEP and tiers.get(key, KEEP) == KEEP}
        return {**self.besides, **tiers, **moved}

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
        self._told = 0
        """The largest of the budgets that the user was told to be the smallest."""
        self._known: OrderedDict[Hashable, Held] = OrderedDict()
        self.current: Held | None = None
        """The plan in force; None while a step is measured."""
        self._candidate: Candidate | None = None
        self._tiers: Mapping[SavedClass, str] = {}
        self._outgrown: dict[Hashable, int] = {}
        """Bytes that a step had saved when it was found to be larger than others that began like it."""
        self._unsure_until = 0
        """Steps that have begun when that is of no account any more."""
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
        if self._steps > self._unsure_until:
            self._outgrown.clear()
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
        self._tiers = {} if held is None else held.tiers
        all_fit = held is not None and all(one.is_declined for one in self._known.values())
        self.is_declined = all_fit and not self._outgrown

    def tier(self, key: SavedClass) -> str | None:
        """Return the tier of a class; None if it is not known, so that it is made as small as can be."""
        return self._tiers.get(key)

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

    def outgrow(self, signature: Hashable, nbytes: int) -> None:
        """Measure anew what was found to save more than others that begin like it, and look at all until it has been.

        Args:
            signature: of the step.
            nbytes: that it has saved so far.
        """
        self._outgrown[signature], self._unsure_until = nbytes, self._steps + _ALONE
        self.forget(signature)

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
        is_over = step.overran or peak + room[1] > _OVER * held.decision.asked
        is_like = len(step.seen) == len(held.measured.upcoming)
        if step.surprises > len(step.seen) // 10 or (is_over and not is_like):
            self._add(signature, held, step, room)
            return
        held.alone = held.alone + 1 if is_like else 0
        if not is_like:
            return
        if held.besides and held.alone >= _ALONE:
            self._hold(signature, Held(held.measured, held.decision))
            return
        candidate = held.candidate
        candidate.seconds.append(step.wall_ended - step.wall)
        candidate.overran |= is_over
        held.steps += 1
        learned = held.decision.with_left(_left_of(step)) if is_over else None
        if learned is not None:
            self._decide(signature, held, learned)
        elif held.is_trial and is_over:
            name = next(name for name, each in held.candidates.items() if each is candidate)
            self._decide(signature, held, held.decision.without(name, peak + room[1]))
        elif held.is_trial:
            if held.steps >= ROUNDS * len(held.candidates):
                share = share_of_stores(held.decision, held.candidates)
                self._decide(signature, held, held.decision.settled(fastest(held.candidates), share))
        elif held.plan.status != "declined":
            self._learn_peak(signature, held, peak + room[1], is_over=is_over)

    def _learn_peak(self, signature: Hashable, held: Held, peak: int, *, is_over: bool) -> None:
        """Hold less where too much was held; where nothing does or something does after all, let the plan say so."""
        is_planned = held.plan.status == "planned"
        decision = held.decision.tighter(peak) if is_over and is_planned else None
        is_news = is_planned == is_over or (is_over and peak > _OVER * held.plan.least)
        if decision is None and is_news and held.steps >= _SURE:
            decision = held.decision.as_held(peak, is_over=is_over)
        if decision is not None:
            self._decide(signature, held, decision)

    def _add(self, signature: Hashable, held: Held, step: Step, room: tuple[int, int]) -> None:
        """Plan for a step that began like others and went on otherwise, which the next of either kind may do again."""
        if self._agreement is None and len(held.options) <= _KINDS * len(step.seen):
            self._outgrown.pop(signature, 0)
            measured = _measured(step, *room, held.options)
            self._hold(signature, Held(measured, decide(measured), held.tiers, held.options))
        else:
            self.forget(signature)

    def _plan(self, signature: Hashable, step: Step, budget: int, background: int) -> None:
        if self._agreement is not None and self._agreement.knows(signature):
            return  # a decision is under way
        measured = _measured(step, budget, background)
        if sum(measured.upcoming) >= self._outgrown.get(signature, 0):
            self._outgrown.pop(signature, 0)
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
            self._hold(signature, Held(held.measured, decision, held.besides, held.options))

    def _hold(self, signature: Hashable, held: Held) -> None:
        if held.plan.status == "impossible" and held.plan.least > self._told:
            self._told = held.plan.least
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


def _measured(
    step: Step, budget: int, background: int, known: Mapping[SavedClass, tuple[Option, ...]] = MappingProxyType({})
) -> Measured:
    made, aliases = records(step, known)
    problem = Problem(made, max(budget, 1), background, step.ended - step.began)
    return Measured(problem, aliases, tuple(seen.nbytes for seen in step.seen), dict(step.sizes))


def _left_of(step: Step) -> dict[SavedClass, tuple[str, float]]:
    """Return of each class its tier, and the part of its bytes that codecs have left."""
    return {seen.key: (seen.tier, seen.left / seen.nbytes) for seen in step.seen if seen.left and seen.nbytes}
