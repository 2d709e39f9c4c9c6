"""A session that knows the class of each saved tensor, and when a step begins; it follows routes that go by these."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar
from weakref import ref

from tensorstash.abilities import Backend
from tensorstash.engine.handle import Handle
from tensorstash.engine.limits import Limits
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.payloads.route import PayloadRoute
from tensorstash.engine.planned.meter import GatedBudget, Meter
from tensorstash.engine.planned.step import Seen, Step, TrackedKept, TrackedStashed
from tensorstash.engine.session import Session
from tensorstash.planner.model import SavedClass
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Demand
from tensorstash.spec import TensorSpec

T = TypeVar("T")

_ENOUGH = 2**62

_RESERVE = 8
"""What is read ahead leaves room for the largest tensor, but no more than this part of all there is."""


class TrackingSession(Session[T]):
    """Knows of each saved tensor what made it, and how many of its kind the step has saved before it.

    A plain session for everything else. Steps are those of one thread at a time.

    Args:
        policy: what becomes of each saved tensor.
        backend: the framework's adapter.
        min_bytes: tensors below this size are kept, in bytes.
        limits: byte budgets and the timeout.

    Raises:
        StoreError: a store that may be used cannot be opened.
    """

    _handle = TrackedStashed

    def __init__(self, policy: HookPolicy, backend: Backend[T], *, min_bytes: int, limits: Limits) -> None:
        self._meter = Meter(self._others)
        super().__init__(policy, backend, min_bytes=min_bytes, limits=limits)
        self._state.prefetcher.budget = GatedBudget(limits.ahead_bytes, self._has_room)
        self._hook_s = 0.0
        self._step = Step(0.0, perf_counter())
        self._payloads: dict[int, tuple[ref[Payload], Seen]] = {}
        self._counts_host = True
        self._unseen = 0  # bytes that were kept without being looked at
        self._due = 0  # bytes of what is being brought back
        self._classify, self._spec = self._spec, self._seen_spec
        self._ref = ref(self)

    # What is held

    def _others(self) -> int:
        tiers = ("memory", "device") if self._counts_host else ("device",)
        return self._unseen + self._state.prefetcher.budget.used + self._state.ledger.bytes_in(tiers)

    def _has_room(self, nbytes: int) -> bool:
        self._settle()
        limit = self._limit()
        spare = min(self._step.largest, limit // _RESERVE)
        return self._meter.held() + self._due + nbytes + spare <= limit

    def _limit(self) -> int:
        """Return the bytes that may be held."""
        return _ENOUGH

    def _settle(self) -> None:
        now = self._now()
        for seen in self._meter.settle():
            self._step.gone(seen, now)

    def _now(self) -> float:
        """Return the seconds that the program has run, outside of hooks."""
        return perf_counter() - self._hook_s

    @contextmanager
    def _in_hook(self) -> Iterator[float]:
        started = perf_counter()
        now = started - self._hook_s
        try:
            yield now
        finally:
            self._hook_s += perf_counter() - started

    # Packing

    def _passes(self, tensor: T) -> Handle | None:
        """Return the handle of a tensor that need not be looked at; None for all others."""
        return None

    def pack(self, tensor: T) -> Handle:
        """Return the handle that the graph holds in place of ``tensor``; see :meth:`Session.pack`.

        Raises:
            StashError: as there.
        """
        with self._in_hook():
            if (passed := self._passes(tensor)) is not None:
                return passed
            self._settle()
            if self._step.is_over:
                self._end_step()
            thread = self._thread
            thread.seen = None
            handle = super().pack(tensor)
            seen: Seen | None = thread.seen
            thread.seen = None
            self._count(tensor)
            if seen is None:
                return handle
            if isinstance(handle, TrackedStashed):
                handle.seen, handle.session = seen, self._ref
                source = handle._payload.alias
                key = seen.token if self._state.held is not None else id(handle._payload)
                if source is not None:
                    self._meter.watch(source, key, seen.block, seen.nbytes)
                self._meter.watch(handle, ("handle", id(seen)), None, 0, seen)
            else:
                handle = TrackedKept(handle, seen, self._ref)  # type: ignore[arg-type]
                self._meter.watch(handle, seen.token, seen.block, seen.nbytes, seen)
            self._meter.look()
            self._make_room()
            return handle

    def _count(self, tensor: T) -> None:
        try:
            self._step.sizes[self._nbytes(tensor)] += 1
        except RuntimeError:  # sparse tensors have no such number
            return

    def _seen_spec(self, tensor: T) -> TensorSpec:
        spec: TensorSpec = self._classify(tensor)
        if spec.nbytes < self._min_bytes:
            return spec
        thread, step = self._thread, self._step
        kind = thread.module, self.backend.producer(tensor), spec.dtype, spec.shape
        token, start = self.backend.storage(tensor)
        seen = Seen(SavedClass(*kind, step.ordinal(kind)), spec.nbytes, token, (start, spec.order.block), self._now())
        if not step.seen:
            self._begin_step(seen, spec)
        self._measure(tensor, seen, spec)
        step.add(seen)
        seen.tier = step.tiers.get(token) or self._tier(seen, spec)
        step.tiers[token] = seen.tier
        thread.seen = seen
        return spec

    def _begin_step(self, first: Seen, spec: TensorSpec) -> None:
        self._counts_host = spec.device == "cpu"
        self._step.began, self._step.wall = first.saved, perf_counter()

    def _measure(self, tensor: T, seen: Seen, spec: TensorSpec) -> None:
        """Find out what may become of a tensor."""

    def _tier(self, seen: Seen, spec: TensorSpec) -> str:
        """Return what becomes of a tensor, as a name."""
        return ""

    def _make_room(self) -> None:
        """Wait until there is room for what is saved next."""

    def _route(self, spec: TensorSpec, demand: Demand = "any") -> PayloadRoute | str:
        seen: Seen | None = self._thread.seen
        if seen is None:
            return super()._route(spec, demand)
        key = seen.key, spec, demand
        known = self._remembered.get(key)
        if known is None:
            named = spec.inside(seen.key.module).saved_as(seen.key.producer, seen.key.ordinal)
            known = self._remembered[key] = self._plan(named, demand)
        return known

    def _suits_readers(self, payload: Payload) -> bool:
        thread = self._thread
        outer, thread.seen = thread.seen, self._seen_of(payload)
        try:
            return super()._suits_readers(payload)
        finally:
            thread.seen = outer

    def _payload(self, tensor: T, source: T, spec: TensorSpec, version: int, route: PayloadRoute) -> Payload:
        payload = super()._payload(tensor, source, spec, version, route)
        self._payloads[id(payload)] = ref(payload), self._thread.seen
        return payload

    def _seen_of(self, payload: Payload) -> Seen | None:
        known, seen = self._payloads.get(id(payload), (None, None))
        return seen if known is not None and known() is payload else None

    def _start(self, payload: Payload) -> None:
        seen = self._seen_of(payload)
        if seen is not None and seen.freed is None:
            seen.freed = self._now()
        super()._start(payload)

    # Unpacking

    @contextmanager
    def asking(self, seen: Seen) -> Iterator[None]:
        """Note that a saved tensor is asked for."""
        with self._in_hook() as now:
            self._state.was_asked = True
            self._settle()
            self._step.asked(seen, now, perf_counter())
            yield
            self._meter.look()

    @contextmanager
    def bringing(self, nbytes: int) -> Iterator[None]:
        """Leave room for what is brought back now, while others are read ahead."""
        self._due = nbytes
        try:
            yield
        finally:
            self._due = 0

    def watch_rebuilt(self, tensor: object, payload: Payload) -> None:
        """Count a tensor that was brought back, as long as it lives."""
        if payload._lease is None:  # else it is counted among what was read ahead
            self._meter.watch(tensor, ("back", id(payload)), None, payload.nbytes)

    # Steps

    def _end_step(self) -> None:
        self._new_step()

    def _new_step(self) -> None:
        self._unseen = 0 if self._step.is_over else self._unseen
        self._payloads = {key: known for key, known in self._payloads.items() if known[0]() is not None}
        self._step = Step(self._now(), perf_counter())
