"""A policy at work on a backend: packs saved tensors, counts, and shares one store among equal configs."""

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar

from tensorstash.abilities import Backend, Region, SupportsDemand, SupportsGraph
from tensorstash.engine.advice import Adviser
from tensorstash.engine.checkpoints import Border, by_treatment, judge_regions
from tensorstash.engine.content import Content
from tensorstash.engine.dedup import Stretch
from tensorstash.engine.handle import Handle, KeptHandle, SessionState, Stashed
from tensorstash.engine.ladder import Ladder, Record
from tensorstash.engine.ledger import Ledger
from tensorstash.engine.link import pace
from tensorstash.engine.place import Place
from tensorstash.engine.places import POLICY, SMALL, Places
from tensorstash.engine.prefetch import QUICK_BYTES, Prefetcher
from tensorstash.engine.readers import Reading
from tensorstash.engine.recomputer import Recomputer
from tensorstash.engine.residency import Residency
from tensorstash.engine.scope import Scope, Thread
from tensorstash.engine.sender import Sender
from tensorstash.engine.stats import Stats
from tensorstash.engine.stream_content import StreamContent
from tensorstash.host.blocks import Switched
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pages import peak_bytes
from tensorstash.host.workers import Workers
from tensorstash.policies.limits import Limits
from tensorstash.policies.plan import HookPolicy, Rebuilding
from tensorstash.sizes import BudgetSize
from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Session(Generic[T]):
    """Executes a policy on a backend. Entered as often as needed, from any number of threads.

    The autograd graph owns the handles and the handles own their slots; the session knows payloads only weakly, so
    that a dropped graph frees its slots by reference counting alone. Stores close with the last of session and
    payloads.

    Args:
        min_bytes: tensors below this size are kept.
        min_away_bytes: tensors below these sizes are kept rather than sent away, by tier.
        budget: how many bytes of saved tensors may stay; None if all leave that can.
    """

    def __init__(
        self,
        policy: HookPolicy,
        backend: Backend[T],
        *,
        min_bytes: int,
        limits: Limits,
        min_away_bytes: Mapping[str, int] = MappingProxyType({}),
        budget: BudgetSize | None = None,
    ) -> None:
        self.policy, self.backend, self.limits, self._min_bytes = policy, backend, limits, min_bytes
        self.sender = sender = Sender(limits, backend.streams)
        recomputes = any(plan.rebuilding for plan in policy.alternatives())
        alternatives = [plan.rest for plan in policy.alternatives()]
        only_keeps = all(plan.keeps for plan in alternatives)
        self._only_keeps = only_keeps and not recomputes and budget is None
        ledger = Ledger()
        self.adviser = Adviser(ledger, limits, only_keeps=only_keeps)
        counted = ledger, sender.in_flight, sender.ahead
        self._ladder = ladder = None if budget is None else Ladder(budget, backend, *counted)
        self._residency = Residency(backend, ladder) if isinstance(backend, SupportsGraph) else None
        # Not of the session, which would be a cycle.
        spare = None if ladder is None else (self._residency or ladder).spare_bytes
        readers = Workers("tensorstash-reader", limits.readers, timeout_s=limits.timeout_s)
        prefetcher = Prefetcher(sender.ahead, readers, QUICK_BYTES * limits.readers, spare)
        self.state = SessionState(backend, ledger, self.adviser, prefetcher, self._residency)
        self._pace: Iterator[None] = iter(())
        if sender.transfers is not None:
            self._pace = pace(sender.transfers.streams, sender.transfers.sent, self.adviser.say)
        # Looked up once: these run for every tensor.
        self._kept = ledger.kept
        self._keep_reason, self._spec = backend.keep_reason, backend.spec
        self._alias, self._version, self._storage = backend.alias, backend.version, backend.storage
        self._stretch, self._thread = Stretch(), Thread()
        self._recomputer = Recomputer(self.state, self._thread) if recomputes else None
        self._may_lose = any(not plan.is_lossless for plan in alternatives)
        # Looked up once: to ask whether a backend has a protocol takes longer than its work.
        self._demand = backend.demand if self._may_lose and isinstance(backend, SupportsDemand) else None
        # Where every tensor is kept, their sum is all there is to say about them.
        self._nbytes = backend.nbytes if self._only_keeps else backend.most_bytes
        self.places = Places(policy, backend, ledger, self.adviser, sender.transfers, min_away_bytes)
        self.regions: dict[str, Region] = {}
        """The blocks of a model that may be computed again, by name."""
        self._border = None if budget is None else Border(self.regions, backend.streams, may_send=not only_keeps)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stash or a wrap holds threads and open files: it cannot be copied or pickled. Keep it out of the object "
            "that is, and make a new one for the copy"
        )

    def after_fork(self) -> None:
        """Keep all that is saved in blocks which a child was forked in."""
        self._only_keeps = True

    def scope(self) -> Scope["Session[T]"]:
        """Return the scope that installs the hooks for this thread until a block ends."""
        self.state.refuse_child()
        self.adviser.entered(self.backend)
        self.sender.entry_began(self.state.ledger.saved_bytes, is_a_step=self.state.was_asked)
        with self._lock:
            if self._border is not None and self.regions and self.state.was_asked:
                self._current_stretch()  # a block asks for the plan before it saves anything
            self._stretch.close()  # contents saved before are never taken for the same
        readers, backend = None, self.backend
        if self._may_lose and isinstance(backend, SupportsGraph):
            readers = backend.readers(lambda handle: isinstance(handle, Stashed) and handle.wants_reader)
        hooks = backend.hooks(self.pack, self.unpack, trusted=True)
        return Scope(self, self.adviser, self._thread, hooks, readers, self._entry_ended)

    def _entry_ended(self) -> None:
        if self.state.is_inherited:
            return
        if self._residency is not None:
            self.sender.start(self._residency.leaving(all_of_them=True), self.places)
        judge_regions(self.adviser, self.regions.values())
        self.sender.entry_ended(self.state.ledger.saved_bytes)
        if self.backend.is_recording() and self.adviser.entry_ended():
            self.adviser.judge(self.state.ledger.snapshot())

    def module(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager in which saved tensors belong to the module ``name``."""
        return Switched(lambda: self._thread.module, self._thread.is_inside, name)

    def region(self, name: str) -> Region:
        return self.regions[name]

    def stats(self) -> Stats:
        self.state.refuse_child()
        stats, transfers = self.state.ledger.snapshot(), self.sender.transfers
        more: dict[str, Any] = {"process_peak": peak_bytes(), "blocks": by_treatment(self.regions.values())}
        if stats.stashed.tensors or stats.recomputed:
            more["steps"] = self.adviser.steps_ended + 1
        if self._residency is not None:
            more |= {"held": self._residency.tally(), "peak_held": self._residency.peak_bytes}
        if self._ladder is not None:
            more["planned"] = self._ladder.tallies()
        if transfers is not None:
            more["pinned_bytes"] = transfers.pinned.locked_bytes
        return replace(stats, advice="\n".join(self.adviser.said), **more)

    def drain(self) -> None:
        """Wait until the bytes of everything saved so far are captured, which makes them immune to later changes.

        For the thread that has saved them, outside of any in-place operation. After StoreError their tensors stay.
        """
        self.state.refuse_child()
        if self._residency is not None:
            self.sender.start(self._residency.clear(), self.places)
        with self._lock:
            self._stretch.close()  # holders of captured contents may write to them now
        self.sender.drain()
        for content in self._stretch.contents():
            content.settle()
        if self._recomputer is not None:
            self._recomputer.settle()

    unpack = staticmethod(SessionState.restore)

    def pack(self, tensor: T) -> Handle:
        """Return the handle that the graph holds in place of ``tensor``."""
        try:
            nbytes = self._nbytes(tensor)
        except RuntimeError:  # sparse tensors have no such number
            nbytes = 0
        is_small = 0 < nbytes < self._min_bytes
        reason = SMALL if is_small else POLICY if self._only_keeps else self._keep_reason(tensor)
        if reason is not None:  # as :meth:`_keep` does, without its frame: most saved tensors are kept
            next(self._kept[reason][nbytes])
            return self.state, self._alias(tensor), self._version(tensor)
        spec = self._spec(tensor)
        is_large, recomputer = spec.nbytes >= self._min_bytes, self._recomputer
        if recomputer is not None and self._residency is not None:
            freed = self._residency.leaving()
            if freed:
                self.sender.start(freed, self.places)
        if self.state.was_asked and (recomputer is not None or self._ladder is not None):
            with self._lock:  # before the first is noted, whatever becomes of it
                self._current_stretch()
        module, places = self._thread.module, self.places
        known = places.recent.get((id(spec), module))
        rebuilding, place = places.way(spec, module) if known is None or known[0] is not spec else known[1]
        record = memory = None
        if self._ladder is not None and is_large:
            if not self._ladder.is_begun:
                self._ladder.begin(spec.device)
            memory = self._storage(tensor)
            record = self._ladder.saved(spec, module, *memory)
        handle: Any = None
        # Without a plan, all are made again that can be.
        may_recompute = is_large and (record is None or record.fate in (None, "recomputed"))
        if recomputer is not None and may_recompute and rebuilding is not None:
            handle = self._made_again(recomputer, tensor, spec, rebuilding, record)
        if handle is None:
            handle = self._store(tensor, spec, place, record, memory)
        if recomputer is not None:
            recomputer.producers.note(tensor, spec, handle)
        return handle

    def _keep(self, tensor: T, reason: str, nbytes: int) -> Handle:
        next(self._kept[reason][nbytes])
        kept = self.state, self._alias(tensor), self._version(tensor)
        return kept if self._recomputer is None else KeptHandle(kept, is_made=bool(self.backend.producer(tensor)))

    def _made_again(
        self, recomputer: Recomputer, tensor: T, spec: TensorSpec, wanted: Rebuilding, record: Record | None
    ) -> Handle | None:
        found = recomputer.handle(tensor, spec, wanted, self._store_narrow)
        if record is not None:
            record.was_recomputed(found is not None)
        if found is not None:
            handle, content = found
            if self._residency is not None and content.users == 1:
                leaving = self._residency.leaving(content, look=False)
                if leaving:
                    self.sender.start(leaving, self.places)
            if content.place.users == 1:  # an output is held for others as far as a share of the step goes
                self.sender.shares.saw(spec.nbytes)
            return handle
        codecs = recomputer.mask_codecs(tensor, spec, wanted)
        place = self.places.way(spec, self._thread.module, "any", codecs)[1] if codecs else ""
        return None if isinstance(place, str) else self._store(tensor, spec, place, record)

    def _store_narrow(self, narrow: T) -> Handle:
        spec = self._spec(narrow)
        return self._store(narrow, spec, self.places.way(spec, self._thread.module)[1], None)

    def _store(
        self,
        tensor: T,
        spec: TensorSpec,
        place: Place | str,
        record: Record | None,
        memory: tuple[Hashable, int] | None = None,
    ) -> Handle:
        if self._demand is not None and not isinstance(place, str) and not place.is_lossless:
            place = self.places.way(spec, self._thread.module, self._demand(tensor))[1]
        if isinstance(place, str):
            return self._keep(tensor, place, spec.nbytes)
        if spec.nbytes < self._min_bytes:
            return self._keep(tensor, SMALL, spec.nbytes)
        if record is not None and record.fate == "kept" and (self._residency is None or not place.is_lossless):
            return self._keep(tensor, "within the budget", spec.nbytes)  # leaving later would need a copy now
        state, backend, residency, thread = self.state, self.backend, self._residency, self._thread
        version = self._version(tensor)
        token, start = memory or self._storage(tensor)
        key: tuple[Hashable, ...] = token, start, spec.order.block, spec.dtype, version, place.number
        source, is_unsure = None, False
        if residency is None:
            # The framework does not tell who else holds the memory, which may be written to at any time, and often no
            # version says so: the bytes are copied now, and only equal bytes are the same content. What the graph did
            # not make is rewritten without a version, too. On a device its content is not looked at.
            source, digest = place.private_source(tensor, spec)
            is_unsure = digest is None and not backend.producer(tensor)
            if digest is not None:
                key = *key, digest
        with self._lock:
            stretch = self._current_stretch() if state.was_asked else self._stretch
            known = None if is_unsure else stretch.same.get(key)
            content = None if known is None else known()
            is_new = content is None
            if content is None:
                shared = None if spec.order.is_dense else place.shared_memory
                span = None if shared is None else stretch.span((token, version), spec, shared)
                reading = Reading(state.learned) if residency is not None and not place.is_lossless else None
                probe = None if source is None else backend.version_probe(tensor)
                source = backend.detached(tensor) if source is None else source
                counted = self.sender.ahead, state.prefetcher.readers, token, stretch.count, record, span, reading
                parts = place, source, spec, version, probe, *counted
                if place.transfers is None:
                    content = Content(*parts)
                    self.sender.shares.saw(spec.nbytes)
                else:
                    content = StreamContent(*parts)  # counted when it leaves
                stretch.add(key, content)
            else:
                content.add_user()
        handle = Stashed(state, content, stretch, spec)
        readers, reading = thread.readers, content.reading
        if readers is not None and reading is not None:
            reading.saved(thread.trail, (thread.module, spec, backend.producer(tensor)))
        next((state.ledger.stashed if is_new else state.ledger.deduplicated)[spec.nbytes])
        if is_new and thread.module:
            next(state.ledger.modules[thread.module][spec.nbytes])
        if readers is not None:
            for other, demand in readers.visit(tensor):
                other.is_read_by(demand)
        if record is not None and not record.is_storable:
            record.was_stored(record.left_bytes)
        leaving: Iterable[Any] = (content,) if residency is None and is_new else ()
        if residency is not None:
            look = self._recomputer is None
            leaving = residency.leaving(content if is_new else None, look=look) if is_new or look else ()
        if leaving:
            self.sender.start(leaving, self.places)
        if residency is not None and residency.is_tight:
            self.sender.make_room(residency.spare_bytes)
        return handle

    def _current_stretch(self) -> Stretch:
        if self.state.was_asked:
            self.state.step_began()
            self.adviser.step_ended()
            self.sender.step_ended()
            if self._ladder is not None:
                self._ladder.step_ended()
                if self._border is not None:
                    in_flight, transfers = self.sender.in_flight, self.sender.transfers
                    if transfers is not None and transfers.compute(self._ladder.device) is not None:
                        in_flight = transfers.out_budget
                    self._border.step_ended(self._ladder, self.state.ledger, in_flight.limit)
            self.state.prefetcher.learn(self._stretch)
            self._stretch.close()
            self._stretch = Stretch()
            if self._recomputer is not None:
                self._recomputer.begin_stretch()
            next(self._pace, None)
        return self._stretch
