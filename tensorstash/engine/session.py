"""A policy at work on a backend: packs what autograd saves, counts, and shares one store among equal configs."""

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

from tensorstash.abilities import (
    Backend,
    Readers,
    SupportsDemand,
    SupportsHolders,
    SupportsReaders,
    SupportsRecording,
)
from tensorstash.engine.advice import Adviser
from tensorstash.engine.calibration import Calibration
from tensorstash.engine.handle import Handle, Stashed, restore
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.limits import Limits
from tensorstash.engine.payloads.dedup import DedupIndex
from tensorstash.engine.payloads.held import Held
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.payloads.resident import ResidentWindow
from tensorstash.engine.payloads.route import PayloadRoute, route_for
from tensorstash.engine.payloads.sequence import Trail
from tensorstash.engine.payloads.stream_payload import StreamPayload
from tensorstash.engine.prefetch import QUICK_BYTES, Prefetcher
from tensorstash.engine.scope import InModule, Scope, Thread
from tensorstash.engine.state import SessionState
from tensorstash.engine.stats import Stats
from tensorstash.engine.timeouts import Timeouts
from tensorstash.engine.transfers import Transfers
from tensorstash.errors import StoreError
from tensorstash.host import native
from tensorstash.host.budget import ByteBudget
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pinned import PinnedMemory
from tensorstash.host.workers import Workers
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Demand, Store, StoreConfig, strictest
from tensorstash.spec import TensorSpec
from tensorstash.stores.memory import Memory

T = TypeVar("T")

_REMEMBERED_SPECS = 4096

_SMALL = "smaller than min_bytes"
_POLICY = "policy"


class Session(Generic[T]):
    """Executes a policy on a backend. Entered as often as needed, from any number of threads.

    The autograd graph owns the handles and the handles own their slots; the session knows payloads only weakly, so
    that a dropped graph frees its slots by reference counting alone. Stores close with the last of session and
    payloads.

    Args:
        policy: what becomes of each saved tensor.
        backend: the framework's adapter.
        min_bytes: tensors below this size are kept, in bytes.
        limits: byte budgets and the timeout.

    Raises:
        StoreError: a store the policy may use cannot be opened.
    """

    def __init__(self, policy: HookPolicy, backend: Backend[T], *, min_bytes: int, limits: Limits) -> None:
        self.policy = policy
        self.backend = backend
        self.limits = limits
        self._min_bytes = min_bytes
        self._in_flight = ByteBudget(limits.in_flight_bytes)
        self._resident = ResidentWindow(limits.resident_bytes)
        self._timeouts = Timeouts(limits.timeout_s)
        self._writers = Workers("tensorstash-writer", limits.writers, timeout_s=limits.timeout_s)
        readers = Workers("tensorstash-reader", limits.readers, timeout_s=limits.timeout_s)
        prefetcher = Prefetcher(ByteBudget(limits.ahead_bytes), readers, QUICK_BYTES * limits.readers)
        held = Held(backend) if isinstance(backend, SupportsHolders) else None
        alternatives = [plan.rest for plan in policy.alternatives()]
        self._only_keeps = all(plan.keeps for plan in alternatives)
        ledger = Ledger()
        self.adviser = Adviser(ledger, limits, only_keeps=self._only_keeps)
        self._state = SessionState(backend, ledger, prefetcher, held, self.adviser)
        self._transfers: Transfers | None = None
        streams = backend.streams
        if streams is not None:
            pinned = PinnedMemory(streams.locked_pages, limits.pinned_bytes)
            self._transfers = Transfers(
                streams, pinned, out_bytes=limits.in_flight_bytes, back_bytes=limits.ahead_bytes
            )
        self._frees_host_memory = False
        # Looked up once: these run for every tensor that is kept.
        self._kept = self._state.ledger.kept
        self._movable = self._state.ledger.movable
        self._small = self._kept[_SMALL]
        self._keep_reason = backend.keep_reason
        self._spec = backend.spec
        self._alias = backend.alias
        self._version = backend.version
        self._dedup = DedupIndex()
        self.calibration = Calibration()
        self._thread = Thread()
        self._may_lose = any(not plan.is_lossless for plan in alternatives)
        # Looked up once: to ask whether a backend has a protocol takes longer than what it does.
        self._demand = backend.demand if self._may_lose and isinstance(backend, SupportsDemand) else None
        # Where every tensor is kept, what they add up to is all there is to say about them.
        self._nbytes = backend.nbytes if self._only_keeps else backend.most_bytes
        self._stores: dict[StoreConfig, Store] = {}
        for plan in alternatives:
            if not plan.keeps:
                self._store(plan.store or Memory())
        self._remembered: dict[Hashable, PayloadRoute | str] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def scope(self) -> Scope["Session[T]"]:
        """Return what installs the hooks for this thread until a block ends."""
        self.adviser.entries += 1
        with self._lock:
            self._dedup.close()  # what was saved before is never taken for the same
        hooks = self.backend.hooks(*self._hooks(), trusted=True)
        return Scope(self, self.adviser, self._thread, hooks, self._new_readers(), Trail(), self._entry_ended)

    def _entry_ended(self) -> None:
        self._start_all_freed()
        self._movable.step_ended()
        is_recording = not isinstance(self.backend, SupportsRecording) or self.backend.is_recording()
        if is_recording and self.adviser.entry_ended():
            self.adviser.judge(self._state.ledger.snapshot())

    def _start_all_freed(self) -> None:
        if self._state.held is not None:
            self._start_freed(self._state.held.freed(all_of_them=True))

    def _hooks(self) -> tuple[Callable[[T], Handle], Callable[[Handle], T]]:
        if native.functions is None or type(self).pack is not Session.pack:  # a subclass is asked for every tensor
            return self.pack, self.unpack
        # Made for each scope: what refers to the session's methods would be a cycle if the session had it.
        large = self._kept[_POLICY] if self._only_keeps and not self._movable.is_counting else None
        pack = native.functions.keeping(
            self._small, self._min_bytes, large, self._nbytes, self._state, self._alias, self._version, self.pack
        )
        return pack, native.functions.restoring(self.unpack)

    def module(self, name: str) -> AbstractContextManager[None]:
        """Return what says that what this thread saves until a block ends belongs to the module ``name``."""
        return InModule(self._thread, name)

    def stats(self) -> Stats:
        """Return what the session has done so far."""
        stats = self._state.ledger.snapshot()
        if self._state.held is not None:
            stats = replace(stats, held=self._state.held.tally())
        if self._transfers is not None:
            stats = replace(stats, pinned_bytes=self._transfers.pinned_bytes)
        return replace(stats, advice=self.adviser.text(self._frees_host_memory))

    def drain(self) -> None:
        """Wait until the bytes of everything saved so far are captured, which makes them immune to later changes.

        For the thread that has saved them, outside of any in-place operation.

        Raises:
            StoreError: they were not within the session's ``timeout_s``. They are given up, and not waited for again:
                their tensors stay where they are, and are refused if they are modified.
        """
        if self._state.held is not None:
            self._start_freed(self._state.held.clear())
        with self._lock:
            self._dedup.close()  # whoever holds what is captured may write to it now
        for payload in self._resident.clear():
            self._begin(payload)
        if self._in_flight.acquire(self._in_flight.limit, timeout_s=self.limits.timeout_s) is None:
            used = self._in_flight.used
            self._writers.abandon()
            raise StoreError(f"{used} bytes are still on their way after {self.limits.timeout_s} seconds")
        if self._transfers is not None:
            self._transfers.drain()
        for payload in self._dedup.payloads():
            payload.settle()

    unpack = staticmethod(restore)
    _handle: type[Stashed] = Stashed

    def pack(self, tensor: T) -> Handle:
        """Return the handle that the graph holds in place of ``tensor``.

        Raises:
            StashError: the tensor's bytes had to be captured at once and could not be, or a store hangs.
        """
        try:
            nbytes = self._nbytes(tensor)
        except RuntimeError:  # sparse tensors have no such number
            nbytes = 0
        if 0 < nbytes < self._min_bytes:
            next(self._small[nbytes])
            return self._state, self._alias(tensor), self._version(tensor)
        if self._movable.is_counting:
            self._movable.look(tensor, self.backend, self._min_bytes, is_over=self._state.was_asked)
        if self._only_keeps:
            reason = _POLICY
        else:
            plan = self._keep_reason(tensor) or self._route(spec := self._spec(tensor))
            if self._demand is not None and not isinstance(plan, str) and not plan.is_lossless:
                plan = self._route(spec, self._demand())
            if isinstance(plan, str):
                reason = plan
            elif spec.nbytes >= self._min_bytes:
                return self._stash(tensor, spec, plan)
            else:
                reason, nbytes = _SMALL, spec.nbytes
        next(self._kept[reason][nbytes])
        return self._state, self._alias(tensor), self._version(tensor)

    def _stash(self, tensor: T, spec: TensorSpec, route: PayloadRoute) -> Stashed:
        state = self._state
        measured = not self.calibration.is_settled and self.calibration.wants(route.plan)
        if measured:
            with self._lock:
                self._current_dedup()
            if self.calibration.is_settled:  # this is the first tensor of the second step
                now = self._route(spec)
                assert isinstance(now, PayloadRoute)
                route, measured = now, False
        version = self.backend.version(tensor)
        token, start = self.backend.storage(tensor)
        content: tuple[Hashable, ...] = token, start, spec.order.block, spec.dtype, version, route.plan
        source, digest = self._source(tensor, spec, route)
        # What the graph did not make is rewritten without a version. On a device its content is not looked at.
        is_unsure = state.held is None and digest is None and not self.backend.producer(tensor)
        if digest is not None:
            content = *content, digest
        with self._lock:
            dedup = self._current_dedup()
            payload = None if is_unsure else dedup.find(content)
            is_new = payload is None
            if payload is None:
                payload = self._payload(tensor, source, spec, version, route)
                if route.shared_memory is not None and not spec.order.is_dense:
                    memory = token, spec.dtype, version
                    payload.interleaved = dedup.interleaved_place(memory, spec, start, route.shared_memory)
                dedup.add(content, payload)
            payload.users += 1
        handle = self._handle(state, payload, dedup, spec)
        readers = self._thread.readers
        if readers is not None and not route.is_lossless:
            place = self._thread.trail.add((self._thread.module, spec, self.backend.producer(tensor)))
            payload.place = self._thread.trail, place
        if is_new:
            state.ledger.stashed(spec.nbytes, self._thread.module)
            if measured:
                data = self.backend.to_host(tensor, spec)
                with self._lock:
                    self.calibration.measure(route.plan, data, route.spec)
            if state.held is None:
                self._start(payload)
            else:
                state.held.add(token, payload)
        else:
            state.ledger.deduplicated(spec.nbytes)
        if readers is not None:
            for other, demand in readers.visit(tensor):
                other.is_read_by(demand)
        if state.held is not None:
            self._start_freed(state.held.freed())
        return handle

    def _source(self, tensor: T, spec: TensorSpec, route: PayloadRoute) -> tuple[T, int | None]:
        """Return what is captured of a tensor, and a checksum of its content if it is a private copy on the host.

        Where the framework does not tell who else holds the memory, it may be written to at any time, and often no
        version says so: the bytes are copied now, and only equal bytes are the same content.
        """
        return route.private_source(tensor, spec) if self._state.held is None else (self.backend.detached(tensor), None)

    def _payload(self, tensor: T, source: T, spec: TensorSpec, version: int, route: PayloadRoute) -> Payload:
        probe = self.backend.version_probe(tensor) if self._state.held is None else None
        parts = route, source, spec, version, probe, self._state.prefetcher.budget, self._timeouts
        return Payload(*parts) if route.transfers is None else StreamPayload(route.transfers, *parts)

    def _new_readers(self) -> Readers[T] | None:
        if not self._may_lose or not isinstance(self.backend, SupportsReaders):
            return None
        return self.backend.readers(lambda handle: isinstance(handle, Stashed))

    def _start_freed(self, payloads: list[Payload]) -> None:
        for payload in payloads:
            if payload.route.is_lossless or self._suits_readers(payload):
                self._start(payload)

    def _suits_readers(self, payload: Payload) -> bool:
        """Choose what of the plan suits the readers; return False if nothing is left of it."""
        demand = payload.demand  # of the readers that are known
        is_guess = not payload.knows_readers
        if is_guess:
            demand = strictest((demand, self._state.learned.get(payload.kind, "exact"))) or demand
            payload.known_readers = payload.users
        route = self._route(payload.spec, demand) if demand != "any" else payload.route
        if isinstance(route, str):
            self._state.ledger.declined(payload.spec.nbytes)
            return False
        payload.route = route
        payload.loses = not route.is_lossless  # last: who asks meanwhile, on another thread, gets the source
        payload.trusts_learned = is_guess and payload.loses
        return True

    def _current_dedup(self) -> DedupIndex:
        if self._state.was_asked:
            self._state.was_asked = False
            self.adviser.step_ended()
            self._state.prefetcher.learn(self._dedup)
            self._dedup.close()
            self._dedup = DedupIndex()
            if self.calibration.settle():
                self._remembered.clear()
            if self._transfers is not None:
                self._transfers.end_step()
        return self._dedup

    def _start(self, payload: Payload) -> None:
        if not payload.route.needs_worker:
            payload.launch()
            return
        may_wait = payload.route.may_wait and self._resident.limit
        for due in self._resident.add(payload) if may_wait else (payload,):
            self._begin(due)
        if payload.nbytes > self._in_flight.limit:
            payload.raise_store_failure()

    def _begin(self, payload: Payload) -> None:
        """Capture the bytes on a worker, or here where too many are on their way; a failure is kept for later."""
        nbytes = payload.nbytes
        if nbytes > self._in_flight.limit:
            payload.launch()
            payload.run(self._timeouts.ask)
            return
        lease = self._in_flight.acquire(nbytes, timeout_s=self.limits.timeout_s)
        if lease is None:
            used = self._in_flight.used
            self._writers.abandon()
            raise StoreError(
                f"{payload.route.store_place}: {used} bytes have been on their way into the store for "
                f"{self.limits.timeout_s} seconds; the device hangs, or timeout_s is too short for it"
            )
        try:
            payload.launch()
            # Weakly: a handle that is dropped before its turn takes its work with it. The lease ends with the work,
            # also when its thread is lost: what that still holds is written off.
            self._writers.submit(partial(_capture, ref(payload)), ended=lease.release)
        except BaseException:
            lease.release()
            raise

    def _route(self, spec: TensorSpec, demand: Demand = "any") -> PayloadRoute | str:
        module = self._thread.module
        key: Hashable = (module, spec, demand) if module or demand != "any" else spec
        known = self._remembered.get(key)
        if known is None:
            if len(self._remembered) >= _REMEMBERED_SPECS:
                self._remembered.clear()
            known = self._remembered[key] = self._plan(spec.inside(module) if module else spec, demand)
        return known

    def _plan(self, spec: TensorSpec, demand: Demand, policy: HookPolicy | None = None) -> PayloadRoute | str:
        plan = self.calibration.applied((policy or self.policy).plan(spec).rest.within(demand), spec.dense())
        if plan.keeps:
            return plan.reason or _POLICY
        config = plan.store or Memory()
        self._frees_host_memory |= spec.device == "cpu"
        self.adviser.may_gain |= bool(plan.codecs) or config.tier != "memory" or spec.device != "cpu"
        store, ledger = self._store(config), self._state.ledger
        route = route_for(plan, spec, self.backend, config, store, ledger, self._transfers)
        if spec.device != "cpu" and route.transfers is None and route.tier != "device":
            why = "its backend has no streams" if self._transfers is None else self._transfers.why_wait(spec.device)
            ledger.copies_wait(spec.device, why or "")
        return route

    def _store(self, config: StoreConfig) -> Store:
        store = self._stores.get(config)
        if store is None:
            store = self._stores[config] = config.open()
            self.adviser.judge_directories(getattr(config, "directories", ()))
        return store


def _capture(payload: ref[Payload]) -> None:
    wanted = payload()
    if wanted is not None:
        wanted.run()
