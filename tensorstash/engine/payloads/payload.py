"""A saved content on its way into a store, what is stored of it, and its way back."""

import threading
from collections.abc import Hashable
from functools import partial
from typing import Any, ClassVar
from weakref import ref

import numpy as np

from tensorstash.engine.ladder import Fate, Record
from tensorstash.engine.payloads.demands import Reading
from tensorstash.engine.payloads.interleaved import InterleavedPlace, Rebuilt, memory_of
from tensorstash.engine.payloads.pipeline import Stored
from tensorstash.engine.payloads.route import PayloadRoute
from tensorstash.errors import CodecError, SlotGoneError, StashError, StoreError, TensorStashError, modified
from tensorstash.host.arrays import borrowed
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.futures import Future
from tensorstash.host.workers import Workers
from tensorstash.spec import TensorSpec

FEW = 4
"""A payload that is so many times smaller than its tensor is read in about the time that decoding it takes."""


class Payload:
    """One storage content, shared by all handles that need it; freed with the last of them. Thread-safe.

    Until its bytes are captured it holds a source, and whoever asks gets that or a copy of it: an alias of the saved
    tensor that is captured when nobody else holds its memory, or a private copy of it. Capturing may happen on any
    thread. What has been modified in place since it was saved is refused, as autograd refuses it: the version is
    compared by whoever asks, on a version probe that outlives the memory.

    What has been read and is still needed by another handle is held as far as the budget goes, so that a content that
    several operations saved is read once. Where backward kernels do not write into what they unpack, these share one
    tensor, as they do without hooks; who may write into it, as functions of users may, gets one of its own.

    Nothing here blocks or takes a lock while it is destroyed: it may die in the garbage collector.

    Args:
        route: how the bytes are encoded, where they go, and how they come back.
        source: an alias of the saved tensor, part of no graph; or a private copy of it, with the same layout.
        spec: the source's spec.
        version: the saved tensor's in-place version when it was saved.
        probe: the version probe of the saved tensor, if ``source`` is a private copy.
        prefetch_budget: bytes that all payloads together may hold decoded.
        readers: threads that load, and are given up after their timeout.
        record: of the tensor in the plan of a budget.
    """

    __slots__ = (
        "__weakref__",
        "_data",
        "_error",
        "_lease",
        "_loading",
        "_lock",
        "_probe",
        "_readers",
        "_rebuilt",
        "_stored",
        "_uses",
        "_version",
        "alias",
        "index",
        "interleaved",
        "is_alone",
        "is_private",
        "loses",
        "nbytes",
        "prefetch_budget",
        "reading",
        "record",
        "route",
        "spec",
        "token",
        "users",
    )

    is_streamed: ClassVar[bool] = False
    """Whether it can be brought back to its device before it is asked for."""

    def __init__(
        self,
        route: PayloadRoute,
        source: Any,
        spec: TensorSpec,
        version: int,
        probe: Any,
        prefetch_budget: ByteBudget,
        readers: Workers,
        record: Record | None = None,
    ) -> None:
        self.route = route
        self.alias = source
        """The source, whatever its version is; None once the bytes are captured."""
        self.spec = spec
        self.nbytes = route.spec.nbytes
        """Bytes of the content, before encoding."""
        self._version = version
        self._probe = probe
        self.is_private = probe is not None
        """Whether the source is the engine's own, so that nobody may get it and it may become the payload."""
        self.is_alone = False
        """Whether nobody else has the memory of its source: who is handed it later is the last to ask, so that nothing
        has to be refused once the bytes are captured."""
        self.loses = self.is_private and not route.is_lossless
        """Whether what comes back has a loss. Until its readers have decided that, its source comes back as it is."""
        self._stored: Stored | None = None
        self._error: TensorStashError | None = None
        self.interleaved: InterleavedPlace | None = None
        self.index = self.users = self._uses = 0
        self.token: Hashable = None
        self.reading: Reading | None = None
        """What will read it, if its codecs lose something and that is found in the graph."""
        self.record = record
        """Of the tensor in the plan of a budget; None without one."""
        self.prefetch_budget = prefetch_budget
        self._readers = readers
        self._lock = threading.Lock()
        self._loading: Future[Any] | None = None
        self._data: Any = None
        self._rebuilt: Rebuilt | None = None
        self._lease: Lease | None = None  # of the bytes that are held decoded

    # Into the store

    def launch(self) -> None:
        """Begin with what has to be done on the thread that saved the tensor: all of it, or nothing."""
        if not self.route.needs_worker:
            self.run()

    def run(self) -> None:
        """Encode and store the source's bytes and drop it, if they shrink; a failure is kept for whoever asks."""
        source, route = self.alias, self.route
        try:
            is_bare = self.is_private or self.is_alone
            probe = self._probe if is_bare else route.backend.version_probe(source)
            stored = route.encode(source, self.spec, private=self.is_private)
            if stored is None:
                route.ledger.declined(self.spec.nbytes)
                if self.record is not None:
                    self.record.was_stored(self.spec.nbytes)
                return
            self.check(source if self.is_alone else probe)
            self._probe = probe
            self._keep(stored)
            if self.record is not None:
                is_same_memory = route.tier == ("memory" if self.spec.device == "cpu" else "device")
                self.record.was_stored(stored.nbytes if is_same_memory else 0)
        except TensorStashError as error:
            self._error = error.again()
        except Exception as error:
            self._error = self._unreadable(source, error).again()
        # Last: a reader that sees no source takes the slot or the error.
        self.alias = None

    def _unreadable(self, source: Any, error: Exception) -> StashError:
        is_array = isinstance(source, np.ndarray)  # copied to the host where it was saved
        described = f"elements of {self.route.spec}" if is_array else self.route.backend.describe(source)
        return StashError(f"reading {described} raised {type(error).__name__}: {error}")

    def _keep(self, stored: Stored) -> None:
        self._stored = stored
        self.route.ledger.stored(stored, self.route.tier, stored.nbytes, self.spec)

    @property
    def may_stay(self) -> bool:
        """Whether a budget may leave the tensor where it is, as it loses nothing and no plan says that it leaves."""
        return self.route.is_lossless and (self.record is None or self.record.fate is not Fate.STORE)

    @property
    def source(self) -> Any:
        """The source; None once the bytes are captured.

        Raises:
            SavedTensorModifiedError: the saved tensor was modified in place since it was saved.
        """
        source = self.alias
        if source is not None:
            self.check(self._probe if self.is_private else source)
        return source

    def check(self, watched: Any) -> None:
        """Refuse a tensor that has been modified in place since it was saved.

        Args:
            watched: whatever shares the tensor's version; None where later changes do no harm.

        Raises:
            SavedTensorModifiedError: it has.
        """
        if watched is None:
            return
        version = self.route.backend.version(watched)
        if version != self._version:
            raise modified(str(self.spec), version, self._version)

    def raise_failure(self) -> None:
        """Raise what has kept the bytes from being captured as they were saved, if anything has.

        Raises:
            StashError: the bytes could not be encoded or stored.
            SavedTensorModifiedError: the saved tensor was modified in place.
        """
        if self._error is not None:
            raise self._error.again()
        self.check(self._probe)

    def raise_store_failure(self) -> None:
        """Raise what has kept the bytes from being encoded or stored; not what is wrong with the tensor."""
        if isinstance(self._error, CodecError | StoreError):
            raise self._error.again()

    def settle(self) -> None:
        """Make captured bytes immune to later changes; for threads that are not modifying the source meanwhile."""
        probe = self._probe
        if probe is not None and self.route.backend.version(probe) == self._version:
            self._probe = None

    # Back

    @property
    def wants_reading(self) -> bool:
        """Whether reading ahead would save time: the bytes are stored, and not at hand yet."""
        route = self.route
        is_stored = self._stored is not None and self._lease is None
        return is_stored and route.is_costly and not route.is_now

    @property
    def is_prefetched(self) -> bool:
        """Whether its tensor is counted among what is read ahead."""
        return self._lease is not None

    @property
    def is_quick(self) -> bool:
        """Whether bringing it back is hardly more than decoding: its tensor is in host memory, and its bytes are there
        already, or few."""
        stored_nbytes = 0 if self._stored is None else self._stored.nbytes
        return self.route.tier == "memory" or stored_nbytes * FEW <= self.nbytes

    def waits_beyond(self, asked: int) -> bool:
        """Whether it was read ahead of the request for the payload of index ``asked``, and still waits for its own."""
        return self._loading is not None and self.index != asked

    def prefetch(self) -> bool:
        """Start reading on another thread; return False if the budget has no room for the result."""
        with self._lock:
            if self._lease is None:
                assert self._stored is not None, "asked to read what was never stored"
                self._lease = self._take_bytes()
                if self._lease is None:
                    return False
                self._loading = self._begin_load()
        return True

    def _take_bytes(self) -> Lease | None:
        # What has a place of its own in shared memory is copied there, and takes twice as much until then.
        return self.prefetch_budget.try_acquire(self.nbytes if self.interleaved is None else 2 * self.nbytes)

    def drop(self) -> None:
        """Drop what is held decoded, to be read again for whoever asks."""
        loading = self._loading
        if loading is not None and not loading.cancel():
            self._wait(loading)
        with self._lock:
            if self._lease is not None and self._loading is loading:
                self._loading = self._data = self._rebuilt = self._lease = None

    def prefetch_to_device(self) -> bool:
        """Start bringing it back to its device; return False to look no further ahead for now."""
        return True

    def restore(self, spec: TensorSpec) -> Any:
        """Return a tensor of the given layout that the graph does not know yet.

        Raises:
            SavedTensorModifiedError: the source was modified in place, perhaps before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded, or a load did not end in time.
        """
        return self.bring_back(spec)[0]

    def bring_back(self, spec: TensorSpec) -> tuple[Any, bool]:
        """Return what :meth:`restore` does, and whether it is counted among what was read ahead."""
        route, backend = self.route, self.route.backend
        self.raise_failure()
        rebuilt, is_counted = (None, False) if self._rebuilt is None else self._reuse()
        if rebuilt is None:
            data, lease = self._load()
            tensor = route.rebuild(data, spec, self.interleaved)
            if self._lease is not None:  # others need it, too
                with self._lock:
                    if self._lease is not None and self._data is None:
                        memory = memory_of(data, self.interleaved)
                        rebuilt = Rebuilt(backend.detached(tensor), spec, backend.version(tensor), memory)
                        self._rebuilt = rebuilt
            if rebuilt is None:
                if lease is not None:  # it is in the hands of backward
                    lease.follow(memory_of(data, self.interleaved), self.nbytes)
                return tensor, lease is not None
        return route.relaid(rebuilt.tensor, rebuilt.spec, spec), is_counted

    def _reuse(self) -> tuple[Rebuilt | None, bool]:
        """Return what was rebuilt before, if it is still as it was, and whether it was read ahead and goes now."""
        with self._lock:
            rebuilt, self._rebuilt = self._rebuilt, None
            if rebuilt is None or self.route.backend.version(rebuilt.tensor) != rebuilt.version:
                return None, False
            self._uses += 1
            if self._uses % self.users:
                self._rebuilt = rebuilt
                return rebuilt, False
        lease = self._release()
        if lease is not None:
            lease.follow(rebuilt.memory, self.nbytes)
        return rebuilt, lease is not None

    def load(self) -> Any:
        """Return what the route rebuilds tensors from; writable only if nobody else needs it; see :meth:`restore`."""
        self.raise_failure()
        return self._load()[0]

    def _load(self) -> tuple[Any, Lease | None]:
        with self._lock:
            data, loading, self._loading = self._data, self._loading, None
        try:
            if data is None and loading is not None and not loading.cancel():
                data = self._read(loading)
            if data is None:
                data = self._decode()
        except BaseException:
            if self._loading is None:
                self._release()
            raise
        return self._hand_out(data)

    def _begin_load(self) -> Future[Any]:
        assert self._stored is not None, "asked to read what was never stored"
        # Weakly: work that waits in a queue must not keep the slot.
        return self._readers.submit(partial(_decode, self.route, ref(self._stored)))

    def _decode(self) -> Any:
        """Return the decoded bytes, by way of a thread that can be given up if the store may hang."""
        if not self.route.may_hang:
            return self.route.decode(self._stored)  # type: ignore[arg-type]  # it is stored
        data = self._read(self._begin_load())
        if data is None:
            raise StoreError(f"{self.route.store_place}: the thread that read {self.nbytes} bytes was killed")
        return data

    def _read(self, loading: Future[Any]) -> Any:
        """Return what a reader has read, or None if the reader was lost meanwhile."""
        self._wait(loading)
        failure = loading.exception()
        if isinstance(failure, TensorStashError):
            # Raised as it is, it would refer to this frame, which refers to it through the future.
            raise failure.again()
        return None if isinstance(failure, TimeoutError | RuntimeError) else loading.result()

    def _wait(self, loading: Future[Any]) -> None:
        try:
            loading.exception(self._readers.timeout_s)
        except TimeoutError as error:
            self._loading = loading  # still under way, and still in the budget
            took = f"reading {self.nbytes} bytes took longer than {self._readers.timeout_s} seconds"
            cure = "the device hangs, or timeout_s is too short for it"
            raise StoreError(f"{self.route.store_place}: {took}; {cure}") from error

    def _hand_out(self, data: Any) -> tuple[Any, Lease | None]:
        """Return data, and the bytes that nobody else needs any more."""
        with self._lock:
            self._uses += 1
            needed = self._uses % self.users != 0 and not self.route.is_at_hand
            if needed and self._lease is None:
                self._lease = self._take_bytes()
            if needed and self._lease is not None:
                if not self.route.backend.backward_writes:
                    return data, None  # which becomes a tensor for all of them
                self._data = data
                return borrowed(data), None
            lease, self._lease, self._data, self._rebuilt = self._lease, None, None, None
        return data, lease

    def _release(self) -> Lease | None:
        with self._lock:
            lease, self._lease, self._data, self._rebuilt = self._lease, None, None, None
        return lease


def capture(payload: ref[Payload]) -> None:
    """Capture a payload, if it is still needed."""
    if (wanted := payload()) is not None:
        wanted.run()


def _decode(route: PayloadRoute, stored: ref[Stored]) -> Any:
    if (wanted := stored()) is None:
        raise SlotGoneError("the graph that needed this payload was dropped before it was read")
    return route.decode(wanted)
