"""A budget at work: what becomes of each class of saved tensors is measured, planned, and held."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tensorstash.abilities import Backend
from tensorstash.abilities.ranks import SupportsRanks
from tensorstash.abilities.recipes import SupportsProducers
from tensorstash.engine.advice import Adviser
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.planned.allowance import Allowance
from tensorstash.engine.planned.control import Control
from tensorstash.engine.planned.memory import MemoryInUse
from tensorstash.engine.planned.options import SAMPLE_BYTES, at_rates, options, rates
from tensorstash.engine.planned.step import Seen, Step
from tensorstash.engine.planned.tracker import NewTracker, Tracker
from tensorstash.engine.state import SessionState
from tensorstash.engine.stats import Stats
from tensorstash.errors import StashError
from tensorstash.host.allocator import release_free
from tensorstash.host.pool import POOL
from tensorstash.planner.model import KEEP
from tensorstash.planner.plan import BudgetPlan
from tensorstash.policies.budget import Budget
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.recompute import RULES, Recompute
from tensorstash.registry import names
from tensorstash.spec import TensorSpec

_FLOORS = ("cpu_offload", "disk_spill", "recompute | disk_spill", "compress | disk_spill", "compress")
"""Where what nobody knows goes, the first that there is."""

_AWAY = _FLOORS[:-1]
"""What leaves nothing in budgeted memory, so that no floor is smaller: what is made again needs what it is made of."""


class Budgeted:
    """Chooses the tier that a plan has for the class of a tensor; the smallest for what no plan knows.

    Args:
        policy: the budget.
        backend: the framework's adapter.
        ledger: tells how fast stores are.
        adviser: tells the user what cannot be helped.
    """

    def __init__(self, policy: Budget, backend: Backend[Any], ledger: Ledger, adviser: Adviser) -> None:
        self._backend = backend
        self._ledger = ledger
        can_remake = isinstance(backend, SupportsProducers)
        tiers = {tier: one for tier, one in policy.tiers().items() if can_remake or not _remakes(one)}
        self._tiers = tiers
        self._remaking = tuple(tier for tier, one in tiers.items() if _remakes(one))
        # What is made again of a smaller tensor is no decision of the planner's: its sizes are those of the others.
        rules = tuple(rule for rule in (*RULES, *names("recipes")) if rule not in ("masks", "narrow"))
        floors = {tier: tiers[tier] for tier in (*_FLOORS, KEEP) if tier in tiers and tier not in self._remaking}
        remade = {f"recompute | {tier}": Recompute(rules) | one for tier, one in floors.items()}
        self._policies = {**tiers, **remade} if self._remaking else tiers
        self._quota = None if policy.disk is None else int(policy.disk)
        self._memory = MemoryInUse(policy, backend)
        self._small = 0
        """Bytes of the step that are too small to be looked at."""
        self._control = Control(backend.ranks if isinstance(backend, SupportsRanks) else lambda: None, adviser.say)
        self._before = ledger.snapshot()
        self._peak = 0
        self._allowance = Allowance(ledger)
        adviser.watches = False  # what there is to gain is what the plan says

    def limit(self, step: Step) -> int:
        """Return the bytes that may be held."""
        self._small = step.small
        budget, background = self._room()
        return budget - background

    def _room(self) -> tuple[int, int]:
        return self._memory.room(self._small)

    # Where everything fits

    @property
    def is_passing(self) -> bool:
        """Whether everything fits, so that tensors are not looked at."""
        return self._control.is_declined

    def passing(self, state: SessionState) -> Mapping[int, Iterator[None]] | None:
        """Return how many tensors of each size need not be looked at; None if all are."""
        if not self._control.is_declined:
            return None
        if state.was_asked or not self._allowance.counters:
            self._refill(state)
        return self._allowance.counters

    def passes(self, nbytes: int, state: SessionState, *, is_first: bool) -> bool | int:
        """Return whether a tensor was expected where everything fits; if there were too many, the bytes they had."""
        if not self._control.is_declined:
            return False
        if self._allowance.take(nbytes):
            return True
        if state.was_asked or not self._allowance.counters:
            self._refill(state)
            if self._allowance.take(nbytes):
                return True
        held = self._control.current
        assert held is not None, "declined without a plan"
        passed = self._allowance.end()
        if passed or not is_first:
            self._control.outgrow(next(iter(held.plan.tiers), None), passed + nbytes)
        return min(held.plan.native - held.plan.background, passed)

    def _refill(self, state: SessionState) -> None:
        state.was_asked = False
        assert self._control.current is not None, "declined without a plan"
        self._allowance.refill(self._control.current.measured.sizes)

    # Within a step

    def begin_step(self, first: Seen, spec: TensorSpec) -> None:
        """Look up the plan of a step by its first tensor."""
        self._memory.begin(spec.device)
        self._control.begin(first.key)
        self._before = self._ledger.snapshot()

    def choose(self, tensor: Any, seen: Seen, spec: TensorSpec, step: Step, spare: int) -> None:
        """Choose what the plan says; what is smallest if it says nothing, or if there is no room."""
        step.remaking = self._remaking
        shared, planned = step.tiers.get(seen.token), self._control.tier(seen.key)
        if shared is None and planned is None:
            seen.options = options(self._tiers, spec, self._sample(tensor, spec))
        seen.tier = tier = shared or self._tier(seen, planned, spec, step, spare)
        seen.policy = self._policies[tier]
        left = self._control.left(seen.key) if tier == planned != KEEP else None
        if left is not None:
            step.count_on(seen, left * seen.nbytes)

    def _tier(self, seen: Seen, planned: str | None, spec: TensorSpec, step: Step, spare: int) -> str:
        wanted = planned
        if planned is None:
            step.surprises += 1
        elif planned not in _AWAY and (spare < 0 or step.counts_on_codecs):
            left = 1.0 if planned == KEEP else self._control.left(seen.key)
            is_over = left is not None and step.settle_excess() > self._control.slack
            if left is not None and (is_over or (planned == KEEP and spare < 0)):
                step.overran = True
                step.moved_instead(left * seen.nbytes)
            if is_over or spare < 0:
                planned = None
        # A recipe is not there for every tensor of a class: what has none goes to the floor.
        if planned is not None and planned not in self._remaking and self._has_room(planned, spec, step):
            return planned
        order = _FLOORS[1:] if spec.device == "cpu" else _FLOORS
        usable = (tier for tier in order if tier in self._tiers and self._has_room(tier, spec, step))
        floor = next(usable, KEEP)
        if wanted is not None and floor == KEEP and self._control.left(seen.key) is not None:
            return wanted  # codecs that lose something are all there is
        return f"recompute | {floor}" if self._remaking and floor not in self._remaking else floor

    def _has_room(self, tier: str, spec: TensorSpec, step: Step) -> bool:
        """Whether there is room on disk for what a tier stores there, which is taken."""
        if tier.endswith("disk_spill"):
            if self._quota is not None and step.on_disk + spec.nbytes > self._quota:
                return False
            step.on_disk += spec.nbytes
        return True

    def _sample(self, tensor: Any, spec: TensorSpec) -> Any:
        data = self._backend.to_host(tensor, spec).reshape(-1)
        count = max(SAMPLE_BYTES // max(spec.itemsize, 1), 1)
        start = max((data.size - count) // 2, 0)
        return data[start : start + count]

    def next_bytes(self, step: Step) -> int:
        """Return how many bytes the next tensor will have, as far as that is known; else those of the largest."""
        following = self._control.next_bytes(len(step.seen))
        return step.largest if following is None else following

    # From step to step

    def end_step(self, step: Step, peak: int) -> None:
        """Learn from a step, in which so many bytes were held at most."""
        measured = rates(self._ledger.snapshot() - self._before)
        for seen in step.seen:
            seen.options = tuple(at_rates(option, measured) for option in seen.options)
        self._peak = max(self._peak, peak)
        before = self._control.newest
        if step.was_asked:
            self._control.end(step, peak, self._room())
        if self._control.newest is not before:
            release_free()  # of what planning took
        if self._control.newest is not None and self._control.newest.plan.status == "declined":
            POOL.give_back(0)  # nothing that is kept will need it

    def plan(self) -> BudgetPlan:
        """Return what the budget has become: a table when printed.

        Raises:
            StashError: no step has ended yet.
        """
        if self._control.newest is None:
            if self._control.is_waiting:
                raise StashError("budget: the processes of this training have not agreed on a plan yet: run more steps")
            raise StashError("budget: there is no plan before a step has ended: run forward and backward once")
        return self._control.newest.plan

    def described(self, stats: Stats, peak: int) -> Stats:
        """Return statistics with the plan, and the most bytes that were held."""
        newest = self._control.newest
        waiting = "waiting for the other processes" if self._control.is_waiting else "measuring the first step"
        text = waiting if newest is None else newest.plan.summary
        return replace(stats, plan=text, peak_held=max(self._peak, peak))

    def count_passed(self) -> None:
        """Count what has passed without having been looked at."""
        self._allowance.count()

    def explain(self) -> str:
        """Return what to do where memory runs out all the same."""
        return self._control.explain()


def _remakes(policy: HookPolicy) -> bool:
    return any(plan.rebuilding for plan in policy.alternatives())


def budgeted(policy: Budget) -> NewTracker:
    """Return what makes a tracker that holds a budget."""

    return lambda parts: Tracker(Budgeted(policy, parts.backend, parts.ledger, parts.adviser), parts)
