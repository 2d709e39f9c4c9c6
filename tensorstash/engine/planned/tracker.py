"""What knows the class of each saved tensor, when a step begins, and how much is held."""

import threading
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from tensorstash.abilities import Backend, SupportsMemory
from tensorstash.engine.advice import Adviser
from tensorstash.engine.handle import Handle
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.planned.handles import TrackedKept, TrackedRecomputed, TrackedStashed
from tensorstash.engine.planned.memory import is_out_of_memory
from tensorstash.engine.planned.meter import GatedBudget, Meter
from tensorstash.engine.planned.step import Seen, Step
from tensorstash.engine.recompute.recomputed import RecomputedHandle
from tensorstash.engine.state import SessionState
from tensorstash.engine.stats import Stats
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pool import POOL
from tensorstash.planner.model import KEEP, SavedClass
from tensorstash.planner.plan import BudgetPlan
from tensorstash.policies.limits import Limits
from tensorstash.spec import TensorSpec

P = ParamSpec("P")
R = TypeVar("R")


class Parts(NamedTuple):
    """What a session gives to its tracker.

    Args:
        backend: the framework's adapter.
        ledger: counts payloads.
        limits: byte budgets.
        min_bytes: smaller tensors are kept.
        adviser: tells the user what cannot be helped.
        wait_for_stores: waits until so many bytes of those that are on their way into stores have arrived, or all;
            returns whether any were.
    """

    backend: Backend[Any]
    ledger: Ledger
    limits: Limits
    min_bytes: int
    adviser: Adviser
    wait_for_stores: Callable[[int], bool]


NewTracker = Callable[[Parts], "Tracker"]
"""Makes a tracker for one session."""

_REMADE_BYTES_PER_S = 2e9
"""Taken for a tensor that is made again and was never asked for."""


class Chooser(Protocol):
    """Says what becomes of each saved tensor, and how many bytes may be held."""

    def limit(self, step: Step) -> int:
        """Return the bytes that may be held."""
        ...

    def begin_step(self, first: Seen, spec: TensorSpec) -> None:
        """Take note of the first tensor of a step."""
        ...

    @property
    def is_passing(self) -> bool:
        """Whether there may be tensors that need not be looked at."""
        ...

    def choose(self, tensor: Any, seen: Seen, spec: TensorSpec, step: Step, spare: int) -> None:
        """Set what becomes of a tensor: its tier, policy, and whether that goes by its class.

        Args:
            tensor: that autograd saves.
            seen: what is known of it.
            spec: of it.
            step: without it.
            spare: bytes for which there is room, if it is kept.
        """
        ...

    def next_bytes(self, step: Step) -> int:
        """Return how many bytes the next tensor will have."""
        ...

    def end_step(self, step: Step, peak: int) -> None:
        """Learn from a step, in which so many bytes were held at most."""
        ...

    def passing(self, state: SessionState) -> Mapping[int, Iterator[None]] | None:
        """Return how many tensors of each size need not be looked at; None if all are."""
        ...

    def passes(self, nbytes: int, state: SessionState, *, is_first: bool) -> bool | int:
        """Return whether a tensor of so many bytes need not be looked at; or what has passed, if too much did.

        Args:
            nbytes: of a tensor.
            state: of the session.
            is_first: whether none was looked at in this step, so that another kind of step may begin with this one.
        """
        ...

    def plan(self) -> BudgetPlan | None:
        """Return what was planned last; None if nothing ever is."""
        ...

    def count_passed(self) -> None:
        """Count what has passed without having been looked at."""
        ...

    def described(self, stats: Stats, peak: int) -> Stats:
        """Return statistics with what there is to say."""
        ...

    def explain(self) -> str:
        """Return what to do where memory runs out all the same; empty if there is nothing to say."""
        ...


class Tracker:
    """Observes what is saved, asked for and let go, step by step; a chooser says what becomes of it. Thread-safe.

    Steps are those of one thread at a time: what others do meanwhile is counted among it.

    Args:
        chooser: says what becomes of each tensor.
        parts: of the session.
    """

    def __init__(self, chooser: Chooser, parts: Parts) -> None:
        self._chooser = chooser
        self._backend = backend = parts.backend
        self._meter = Meter(parts.ledger, backend.memory if isinstance(backend, SupportsMemory) else lambda it: it)
        self.watch_back = self._meter.watch_back
        self.prefetch_budget = GatedBudget(parts.limits.ahead_bytes, self._meter)
        """What may be read ahead of backward."""
        self._wait_for_stores = parts.wait_for_stores
        self._hook_s = 0.0
        self._entered: float | None = None
        """When the outermost hook began; None outside of hooks."""
        self._is_asked = False
        """Whether backward asks for a tensor, so that others are asked for to make that."""
        self._step = Step(0.0, perf_counter())
        self._peak = 0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._entered = None
        self._is_asked = False
        # Of one thread, again and again: to make a tensor again is to ask for others.
        self._lock = threading.RLock()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._meter.held() + self.prefetch_budget.used

    @property
    def peak(self) -> int:
        """Most bytes that were held in this step."""
        return self._peak

    def in_hook(self, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Do the work of a hook, and return what it returns.

        Meanwhile the clock of the program stands still, and other threads wait until the outermost hook is over.
        """
        with self._lock:  # no context manager of Python, which takes five calls, twice for each tensor
            if self._entered is not None:
                return work(*arguments, **named)
            self._entered = entered = perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                self._entered = None
                self._hook_s += perf_counter() - entered

    # Packing

    def passing(self, state: SessionState) -> Mapping[int, Iterator[None]] | None:
        """Return how many tensors of each size need not be looked at; None if all are."""
        with self._lock:
            return self._chooser.passing(state)

    def passes(self, nbytes: int, state: SessionState) -> bool:
        """Whether a tensor of so many bytes need not be looked at."""
        if not self._chooser.is_passing:
            return False
        passed = self._chooser.passes(nbytes, state, is_first=not self._step.seen or self._step.is_over)
        if passed is True or passed is False:
            return passed
        self._meter.unseen = passed
        self._new_step()
        return False

    def begin(self, nbytes: int) -> None:
        """Take note that a tensor is packed, which may be the first of a step."""
        if self._meter.has_news:
            self.settle()
        if self._step.is_over:
            self._end_step()
        if nbytes:
            self._step.sizes[nbytes] += 1

    def kept_small(self, nbytes: int) -> None:
        """Take note of a tensor that is too small to be looked at."""
        self._step.small += nbytes
        self._meter.limit = self._chooser.limit(self._step)

    def see(self, tensor: Any, spec: TensorSpec, module: str) -> Seen:
        """Return what is known of a saved tensor, and what becomes of it."""
        step, backend = self._step, self._backend
        kind = module, backend.producer(tensor), spec.dtype, spec.shape
        token, start = backend.storage(tensor)
        seen = Seen(SavedClass(*kind, step.ordinal(kind)), spec.nbytes, token, (start, spec.order.block), self._now())
        if not step.seen:
            self._begin_step(seen, spec)
        step.add(seen)
        is_new = not self._meter.knows(token)
        spare = self._leave_room(seen.nbytes) if is_new else self._meter.limit - self.held
        self._chooser.choose(tensor, seen, spec, step, spare)
        step.tiers[token] = seen.tier
        if seen.tier != KEEP and seen.nbytes > step.largest_moved:
            step.largest_moved = seen.nbytes
            self._spare()
        return seen

    def tracked(self, handle: Any, seen: Seen) -> Handle:
        """Return a handle that tells when it is asked for, in place of one that does not."""
        if isinstance(handle, TrackedStashed):
            handle.seen, handle.tracker = seen, self
            self._watch_stashed(handle, seen)
            self._meter.await_end(handle, seen)
        elif isinstance(handle, RecomputedHandle):
            seen.remade_s = seen.nbytes / _REMADE_BYTES_PER_S
            inputs = (getattr(each, "seen", None) for each in handle.content.inputs)
            seen.needs = tuple(each.key for each in inputs if each is not None)
            self.freed(seen)
            handle = TrackedRecomputed(handle, seen, self)
            self._meter.await_end(handle, seen)
        else:
            handle = TrackedKept(handle, seen, self)
            self._meter.watch(handle, seen.token, seen.block, seen.nbytes, seen)
        return handle  # type: ignore[no-any-return]

    def _watch_stashed(self, handle: TrackedStashed, seen: Seen) -> None:
        payload = handle.payload
        source = payload.alias
        if source is not None:
            self._meter.watch(source, id(payload) if payload.is_private else seen.token, seen.block, seen.nbytes)

    def expect_next(self) -> None:
        """Wait until there is room for the tensor that is saved next, or nothing is on its way any more."""
        self._leave_room(self._chooser.next_bytes(self._step), held=self._look())

    def _leave_room(self, nbytes: int, drop: Callable[[int], int] = lambda _: 0, held: int | None = None) -> int:
        """Wait until there is room for so many bytes more, or nothing is on its way any more; then drop what was read
        ahead.

        What has arrived may still be in use, so that its arrival leaves no room: then others are waited for.

        Returns:
            The bytes that are left beside them; less than none if there is no room.
        """
        meter = self._meter
        spare = meter.limit - (self.held if held is None else held) - nbytes
        while spare < 0:
            if not (meter.has_news or self._wait_for_stores(-spare) or meter.has_news):  # the last may just arrive
                if not drop(-spare):
                    break
                self._step.short -= spare
                self._spare()
            self.settle()
            spare = meter.limit - self.held - nbytes
        if meter.is_of_host:  # what is idle is the engine's, and in the budget
            POOL.give_back(max(spare, 0))
        return spare

    def _spare(self) -> None:
        """Read nothing ahead into what others need room for, which are not read ahead."""
        self._meter.spare = self._step.largest_moved + self._step.short

    def freed(self, seen: Seen) -> None:
        """Take note that nobody besides the graph holds a tensor any more."""
        if seen.freed is None:
            seen.freed = self._now()

    # Unpacking

    def ask(self, seen: Seen, give: Callable[[], R]) -> R:
        """Take note that a saved tensor is asked for, and return what gives it."""
        return self.in_hook(self._ask, seen, give)

    def _ask(self, seen: Seen, give: Callable[[], R]) -> R:
        is_for_another = self._is_asked
        try:
            self._is_asked = True
            if self._meter.has_news:
                self.settle()
            if not is_for_another:
                self._step.asked(seen, self._now(), perf_counter())
            given = give()
        finally:
            self._is_asked = is_for_another
        self._look()
        return given

    def bring(self, nbytes: int, drop: Callable[[int], int], make: Callable[[], R]) -> R:
        """Leave room for what is brought back now, while others are on their way out or read ahead, and return it.

        Args:
            nbytes: of it.
            drop: drops so many bytes that were read ahead; returns how many there were.
            make: brings it back, and may ask for others to make it of.
        """
        meter = self._meter
        before, making = meter.due, meter.making
        try:
            meter.due, meter.making = before + nbytes, nbytes
            if nbytes:
                self._leave_room(meter.due, drop)
            return make()
        finally:
            meter.due, meter.making = before, making

    # Steps

    def settle(self) -> None:
        """Take note of what the graph has let go."""
        now = self._now()
        for seen, is_back in self._meter.settle():
            if not is_back:
                self._step.gone(seen, now)
            elif seen.used is None:
                seen.used = now

    def _now(self) -> float:
        """Return the seconds that the program has run, outside of hooks."""
        entered = self._entered  # once: another thread may leave its hook
        return (perf_counter() if entered is None else entered) - self._hook_s

    def _look(self) -> int:
        if self._meter.has_news:
            self.settle()  # what has gone meanwhile is not held beside what has come
        held = self.held
        self._peak = max(self._peak, held + self._meter.making)
        return held

    def _begin_step(self, first: Seen, spec: TensorSpec) -> None:
        self._meter.begin(is_of_host=spec.device == "cpu")
        self._step.began, self._step.wall = first.saved, perf_counter()
        self._chooser.begin_step(first, spec)
        self._meter.limit = self._chooser.limit(self._step)
        self._peak = 0

    def _end_step(self) -> None:
        self._chooser.end_step(self._step, self._peak)
        self._new_step()

    def _new_step(self) -> None:
        self._meter.unseen = 0 if self._step.is_over else self._meter.unseen
        self._step = Step(self._now(), perf_counter())
        self._meter.limit = self._chooser.limit(self._step)
        self._spare()

    def plan(self) -> BudgetPlan | None:
        """Return what a budget has become; None without a budget.

        Raises:
            StashError: no step has ended yet.
        """
        with self._lock:
            self.settle()
            if self._step.is_over and self._step.seen:
                self._end_step()
            return self._chooser.plan()

    def count_passed(self) -> None:
        """Count what has passed without having been looked at."""
        with self._lock:
            self._chooser.count_passed()

    def failed(self, error: BaseException) -> None:
        """Add to an error that says that memory ran out what to do about it."""
        if advice := self._chooser.explain() if is_out_of_memory(error) else "":
            error.add_note(advice)

    def described(self, stats: Stats) -> Stats:
        """Return statistics with what there is to say of what is tracked."""
        return self._chooser.described(stats, self._peak)
