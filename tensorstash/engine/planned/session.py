"""A session that holds a budget, or a route that goes by what made each tensor: it knows the class of each."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from operator import length_hint
from typing import Any, TypeVar

from tensorstash.abilities import Backend
from tensorstash.engine.handle import Handle
from tensorstash.engine.limits import Limits
from tensorstash.engine.payloads.route import PayloadRoute
from tensorstash.engine.planned.control import Control
from tensorstash.engine.planned.memory import MemoryInUse
from tensorstash.engine.planned.options import SAMPLE_BYTES, at_rates, options, rates
from tensorstash.engine.planned.step import Seen
from tensorstash.engine.planned.tracking import TrackingSession
from tensorstash.engine.session import Session
from tensorstash.engine.stats import Stats
from tensorstash.errors import ConfigError, StashError
from tensorstash.host import native
from tensorstash.planner.model import KEEP
from tensorstash.planner.plan import BudgetPlan
from tensorstash.policies.budget import Budget
from tensorstash.protocols import Demand
from tensorstash.spec import TensorSpec

T = TypeVar("T")

_POLICY = "policy"


class BudgetSession(TrackingSession[T]):
    """Measures a step, plans, and holds a budget. Entered as often as needed; steps are those of one thread at a time.

    Args:
        policy: the budget.
        backend: the framework's adapter.
        min_bytes: tensors below this size are kept, in bytes.
        limits: byte budgets and the timeout.

    Raises:
        StoreError: a store that may be used cannot be opened.
    """

    policy: Budget

    def __init__(self, policy: Budget, backend: Backend[T], *, min_bytes: int, limits: Limits) -> None:
        super().__init__(policy, backend, min_bytes=min_bytes, limits=limits)
        self._tiers = policy.tiers()
        self._memory = MemoryInUse(policy, backend)
        self._control = Control(self._room, self.adviser.say)
        self._stats_before = Stats()
        self._peak = 0
        self._counters: dict[int, Iterator[None]] = {}
        self._passed: Counter[int] = Counter()
        self.adviser.watches = False  # what there is to gain is what the plan says

    def _limit(self) -> int:
        budget, background = self._room()
        return budget - background

    def _room(self) -> tuple[int, int]:
        return self._memory.room(self._small_bytes)

    @property
    def _small_bytes(self) -> int:
        return sum(nbytes * count for nbytes, count in self._step.sizes.items() if nbytes < self._min_bytes)

    # Packing

    def _hooks(self) -> tuple[Callable[[T], Handle], Callable[[Handle], T]]:
        if native.functions is None:
            return self.pack, self.unpack
        declined = self._control.is_declined
        if declined:
            self._refill()
        pack = native.functions.keeping(
            self._small,
            self._min_bytes,
            self._counters if declined else None,
            self._nbytes,
            self._state,
            self._alias,
            self._version,
            self.pack,
        )
        return pack, native.functions.restoring(self.unpack)

    def _refill(self) -> None:
        """Let as many tensors of each size pass as the measured step had, if that step is over."""
        if self._state.was_asked or not self._counters:
            self._state.was_asked = False
            assert self._control.current is not None, "declined without a plan"
            self._note_passed()
            self._passed.clear()
            for nbytes, count in self._control.current.sizes.items():
                self._counters[nbytes] = repeat(None, count)

    def _note_passed(self) -> None:
        """Count what has passed since the counters were filled."""
        held = self._control.current
        if held is None:
            return
        for nbytes, counter in self._counters.items():
            passed = held.sizes[nbytes] - length_hint(counter)
            for _ in range(passed - self._passed[nbytes]):
                next(self._kept[_POLICY][nbytes])
            self._passed[nbytes] = passed

    def _passes(self, tensor: T) -> Handle | None:
        """Return the handle of a tensor that was expected where everything fits; None if it was not."""
        if not self._control.is_declined:
            return None
        nbytes = self._nbytes(tensor)
        for _ in range(2):
            if next(self._counters.get(nbytes, iter(())), KEEP) is None:
                return self._state, self._alias(tensor), self._version(tensor)
            if not self._state.was_asked:
                break
            self._refill()
        held = self._control.current
        assert held is not None, "declined without a plan"
        self._note_passed()
        passed = sum(size * count for size, count in self._passed.items())
        self._unseen = min(held.plan.native - held.plan.background, passed)
        self._control.forget(next(iter(held.plan.tiers), None))
        self._counters.clear()
        self._passed.clear()
        self._new_step()
        return None

    def _begin_step(self, first: Seen, spec: TensorSpec) -> None:
        super()._begin_step(first, spec)
        self._memory.begin(spec.device)
        self._control.begin(first.key)
        self._meter.peak = 0

    def _measure(self, tensor: T, seen: Seen, spec: TensorSpec) -> None:
        if self._control.current is None and seen.token not in self._step.tiers:
            seen.options = options(self._tiers, spec, self._sample(tensor, spec))

    def _sample(self, tensor: T, spec: TensorSpec) -> Any:
        data = self.backend.to_host(tensor, spec).reshape(-1)
        count = max(SAMPLE_BYTES // max(spec.itemsize, 1), 1)
        start = max((data.size - count) // 2, 0)
        return data[start : start + count]

    def _tier(self, seen: Seen, spec: TensorSpec) -> str:
        """Return what the plan says of a tensor; what is smallest if it says nothing, or if there is no room."""
        planned = self._control.tier(seen.key)
        if planned is None:
            self._step.surprises += 1
        incoming = 0 if self._meter.knows(seen.token) else seen.nbytes
        if planned is not None and self._meter.held() + incoming > self._limit():
            self._step.overran = planned == KEEP or self._step.overran
            planned = None
        tier = planned or self._floor(spec)
        quota = getattr(self._tiers.get("disk_spill"), "budget", None)
        if tier == "disk_spill":
            if quota is not None and self._step.on_disk + spec.nbytes > quota:
                return "compress" if "compress" in self._tiers else KEEP
            self._step.on_disk += spec.nbytes
        return tier

    def _floor(self, spec: TensorSpec) -> str:
        order = ("disk_spill", "compress") if spec.device == "cpu" else ("cpu_offload", "disk_spill", "compress")
        return next((tier for tier in order if tier in self._tiers), KEEP)

    def _route(self, spec: TensorSpec, demand: Demand = "any") -> PayloadRoute | str:
        seen: Seen | None = self._thread.seen
        if seen is None:
            return super()._route(spec, demand)
        key = seen.tier, spec, demand
        known = self._remembered.get(key)
        if known is None:
            known = self._remembered[key] = self._plan(spec, demand, self._tiers[seen.tier])
        return known

    def _make_room(self) -> None:
        """Wait for what is on its way out, as long as what is saved next has no room."""
        step = self._step
        following = self._control.next_bytes(len(step.seen))
        following = step.largest if following is None else following
        if self._state.held is not None:
            self._start_freed(self._state.held.freed())
        used = self._in_flight.used
        excess = self._meter.held() + following - self._limit()
        if excess <= 0 or not used:
            return
        lease = self._in_flight.acquire(self._in_flight.limit - max(used - excess, 0), timeout_s=self.limits.timeout_s)
        if lease is not None:
            lease.release()
        self._settle()

    # Steps

    def _end_step(self) -> None:
        step = self._step
        measured = rates(self.stats() - self._stats_before)
        for seen in step.seen:
            seen.options = tuple(at_rates(option, measured) for option in seen.options)
        self._peak = max(self._peak, self._meter.peak)
        if step.was_asked:
            self._control.end(step, self._meter.peak)
        self._new_step()

    def _new_step(self) -> None:
        super()._new_step()
        self._stats_before = super().stats()

    def plan(self) -> BudgetPlan:
        """Return what the budget has become: a table when printed.

        Raises:
            StashError: no step has ended yet.
        """
        if self._control.newest is None:
            self._settle()
            if self._step.is_over:
                self._end_step()
        if self._control.newest is None:
            raise StashError("budget: there is no plan before a step has ended: run forward and backward once")
        return self._control.newest.plan

    def stats(self) -> Stats:
        """Return what the session has done so far."""
        self._note_passed()
        stats = super().stats()
        newest = self._control.newest
        text = "measuring the first step" if newest is None else newest.plan.summary
        return replace(stats, plan=text, peak_held=max(self._peak, self._meter.peak))


def plan_of(session: Session[Any]) -> BudgetPlan:
    """Return the plan of a session.

    Raises:
        ConfigError: its policy is no budget.
        StashError: no step has ended yet.
    """
    if not isinstance(session, BudgetSession):
        raise ConfigError(f"plan: got the policy {session.policy!r}, expected a Budget: nothing else is planned")
    return session.plan()
