"""One saved block of memory: its way into a place, and its way back."""

import threading
from collections.abc import Hashable
from functools import partial
from typing import Any, ClassVar
from weakref import ref

import numpy as np

from tensorstash.engine.ladder import Record
from tensorstash.engine.place import Place, Stored
from tensorstash.engine.readers import Reading
from tensorstash.engine.shared_span import SharedSpan
from tensorstash.errors import CodecError, SlotGoneError, StashError, StoreError, TensorStashError, modified
from tensorstash.host.arrays import Array, borrowed, lender
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.workers import Future, Workers
from tensorstash.spec import TensorSpec

_FEW = 4  # a payload that is so many times smaller than its tensor is read in about the time that decoding it takes

Rebuilt = tuple[Any, TensorSpec, int, Array]
"""An alias of a tensor that may be handed out again if nobody has written into it; its layout, version and memory."""


class Content:
    """One saved block of memory, shared by all handles that need it; freed with the last of them. Thread-safe.

    It is resident while :attr:`alias` is set, in its place once :attr:`stored` is, on its way back or loaded while it
    has a :attr:`lease`. Any thread may capture it. Each request compares the version, on a probe that outlives the
    memory, so that a tensor that was modified in place since it was saved is refused, as autograd refuses it.

    A loaded content that another handle still needs is held as far as the budget goes, so that it is read once for
    several operations. Where backward kernels do not write into unpacked tensors, these share one tensor, as they do
    without hooks; an operation that may write into it gets a tensor of its own.

    Nothing here blocks or takes a lock while it is destroyed: it may die in the garbage collector.

    Args:
        source: an alias of the saved tensor, part of no graph; or a private copy of it, with the same layout.
        probe: the version probe of the saved tensor, if ``source`` is a private copy.
        ahead: bytes that all contents together may hold loaded.
        readers: threads that load, and are given up after their timeout.
        token: names the memory of the source.
        span: memory that it shares with other contents when it is back.
        reading: its readers, if they decide whether its codecs may lose something.
    """

    __slots__ = (
        "__weakref__", "_ahead", "_data", "_error", "_is_alone", "_loading", "_lock", "_probe", "_readers", "_rebuilt",
        "_stream", "_transfers", "_uses", "_version", "alias", "index", "is_private", "is_quick", "lease",
        "loaded_nbytes", "loses", "nbytes", "place", "reading", "record", "span", "spec", "stored", "token", "users",
    )  # fmt: skip

    is_streamed: ClassVar[bool] = False
    """Whether it can be brought back to its device before it is asked for."""
    is_recipe: ClassVar[bool] = False
    """Whether it is made again, and not captured."""

    def __init__(
        self,
        place: Place,
        source: Any,
        spec: TensorSpec,
        version: int,
        probe: Any,
        ahead: ByteBudget,
        readers: Workers,
        token: Hashable = None,
        index: int = 0,
        record: Record | None = None,
        span: SharedSpan | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.place = place
        self.alias = source
        """The source, whatever its version is; None once the bytes are captured."""
        self.spec = spec
        self.nbytes = place.spec.nbytes
        """Bytes of the content, before encoding."""
        self.token, self.index, self.record, self.reading = token, index, record, reading
        self._transfers = transfers = place.transfers
        self._stream = None if transfers is None else transfers.compute(spec.device)
        self._version = version
        self._probe = probe
        self.is_private = probe is not None
        """Whether the source is the engine's own, so that nobody may get it and it may become the payload."""
        self._is_alone = not self.is_private
        self.loses = self.is_private and not place.is_lossless
        """Whether it comes back with a loss. Until its readers have decided that, its source comes back as it is."""
        self.is_quick = place.tier == "memory" and not self.is_streamed
        """Whether loading takes hardly longer than decoding: the bytes are in host memory, or few."""
        self.users, self._uses = 1, 0
        self._ahead, self._readers, self.span = ahead, readers, span
        self.loaded_nbytes = self.nbytes if span is None else 2 * self.nbytes
        """Bytes that it takes when it is back: with memory to share it is copied there, and takes twice as much."""
        self._lock = threading.Lock()
        self.stored: Stored | None = None
        self._error: TensorStashError | None = None
        self._loading: Future[Any] | None = None
        self._data: Any = None
        self._rebuilt: Rebuilt | None = None
        self.lease: Lease | None = None
        """Of the bytes that are held loaded, or will be."""

    @property
    def is_large(self) -> bool:
        """Whether it is larger than all that may be near the computation of its device, such as logits."""
        return False

    def add_user(self) -> None:
        """Count one more handle, or a recipe that will ask."""
        self.users += 1

    def narrow(self, place: Place) -> None:
        """Take another place, that suits the readers; meanwhile other threads get the source."""
        self.place = place
        self.loses = not place.is_lossless

    # Into its place

    def is_held(self) -> None:
        """Note that others may have the memory of its source when it is captured: their writes to it are refused."""
        self._is_alone = False

    def capture(self) -> None:
        """Encode and store the source's bytes and drop it, if they shrink; a failure is kept for later requests."""
        source, place = self.alias, self.place
        if source is None:
            return
        try:
            probe = self._probe if self.is_private or self._is_alone else place.backend.version_probe(source)
            stored = place.capture(source, self.spec, private=self.is_private)
            if stored is None:
                next(place.ledger.declined[self.spec.nbytes])
                if self.record is not None:
                    self.record.was_stored(self.spec.nbytes)
                return
            self._check(source if self._is_alone else probe)
            self._probe = probe
            self._keep(stored)
        except TensorStashError as error:
            self._fail(error)
        except Exception as error:
            self._fail(self._unreadable(source, error))
        # Last: a reader that sees no source takes the slot or the error.
        self.alias = None

    def _keep(self, stored: Stored) -> None:
        self.stored = stored
        self.is_quick |= not self.is_streamed and stored.nbytes * _FEW <= self.nbytes
        payload = stored, stored.nbytes, self.spec
        left_bytes = self.place.ledger.stored(self.place.tier, [payload], stored.seconds)
        if self.record is not None:
            self.record.was_stored(left_bytes)

    def _fail(self, error: TensorStashError) -> None:
        self._error = error.again()

    def _unreadable(self, source: Any, error: Exception) -> StashError:
        is_array = isinstance(source, np.ndarray)  # copied to the host where it was saved
        described = f"elements of {self.place.spec}" if is_array else self.place.backend.describe(source)
        return StashError(f"reading {described} raised {type(error).__name__}: {error}")

    @property
    def source(self) -> Any:
        """The source, unless the saved tensor was modified in place; None once the bytes are captured."""
        source = self.alias
        if source is not None:
            self._check(self._probe if self.is_private else source)
        return source

    def _check(self, watched: Any) -> None:
        """Refuse a modified tensor, whose version ``watched`` shares; None where later changes do no harm."""
        if watched is not None:
            version = self.place.backend.version(watched)
            if version != self._version:
                raise modified(str(self.spec), version, self._version)

    def raise_failure(self) -> None:
        """Raise the error that has kept the bytes from being captured as they were saved, if there is one."""
        if self._error is not None:
            raise self._error.again()
        self._check(self._probe)

    def raise_store_failure(self) -> None:
        """Raise the error that has kept the bytes from being encoded or stored; none that is about the tensor."""
        if isinstance(self._error, CodecError | StoreError):
            raise self._error.again()

    def settle(self) -> None:
        """Make captured bytes immune to later changes; for threads that are not modifying the source meanwhile."""
        probe = self._probe
        if probe is not None and self.place.backend.version(probe) == self._version:
            self._probe = None

    # Back

    def peek(self, spec: TensorSpec) -> Any:
        """Return a tensor to look at it and drop it; nobody is told, and nothing is read ahead."""
        source = self.source
        if source is not None:  # where the bytes were copied at once, perhaps as an array
            is_tensor = spec == self.spec and not self.is_private
            return source if is_tensor else self.place.copy(source, self.spec, spec)
        self.add_user()  # besides those who will ask
        tensor = self.restore(spec)
        self.drop()  # backward is far away
        return tensor

    def prefetch(self) -> bool:
        """Start reading on another thread; return False if the budget has no room for the result."""
        with self._lock:
            if self.lease is None:
                self.lease = self._ahead.try_acquire(self.loaded_nbytes)
                if self.lease is None:
                    return False
                assert self.stored is not None, "asked to read a content that was never stored"
                # Weakly: work that waits in a queue must not keep the slot.
                self._loading = self._readers.submit(partial(_load, self.place, ref(self.stored)))
        return True

    def drop(self) -> None:
        """Drop the decoded bytes, to be read again for the next request."""
        loading = self._loading
        if loading is not None and not loading.cancel():
            return  # it is under way, for somebody who asks
        with self._lock:
            if self.lease is not None and self._loading is loading:
                self._loading = None
                self._let_go()

    @property
    def bytes_to_bring(self) -> int | None:
        """Bytes that it takes on its device if it is brought back now; 0 if it is there; None to look no further."""
        return 0

    def restore(self, spec: TensorSpec) -> Any:
        """Return a tensor of the given layout that the graph does not know yet."""
        if self._error is not None or self._probe is not None:
            self.raise_failure()
        place = self.place
        if self._rebuilt is not None:
            rebuilt = self._reuse()
            if rebuilt is not None:
                return place.relaid(rebuilt[0], rebuilt[1], spec)
        data, lease = self._load()
        tensor = place.rebuild(data, spec, self.span)
        if self.lease is None and lease is None:
            return tensor
        shared = None if self.span is None else self.span.memory()
        memory = lender(data) if shared is None else shared
        with self._lock:
            if self.lease is not None and self._data is None:  # others need it, too
                backend = place.backend
                alias = backend.detached(tensor)
                self._rebuilt = alias, spec, backend.version(tensor), memory
                return place.relaid(alias, spec, spec)
        if lease is not None:  # it is in the hands of backward
            lease.follow(memory, self.nbytes)
        return tensor

    def _reuse(self) -> Rebuilt | None:
        """Return the tensor that was rebuilt before, if nobody has written into it."""
        with self._lock:
            rebuilt, self._rebuilt = self._rebuilt, None
            if rebuilt is None or self.place.backend.version(rebuilt[0]) != rebuilt[2]:
                return None
            self._uses += 1
            if self._uses % self.users:
                self._rebuilt = rebuilt
                return rebuilt
            lease = self._let_go()
        if lease is not None:
            lease.follow(rebuilt[3], self.nbytes)
        return rebuilt

    def _load(self, *, may_hold: bool = True) -> tuple[Any, Lease | None]:
        """Return data for the place to rebuild tensors from, and the bytes that nobody else needs any more."""
        with self._lock:
            data, loading, self._loading = self._data, self._loading, None
        try:
            if data is None and loading is not None and not loading.cancel():
                data = self._read(loading)
            if data is None:
                data = self._decode()
        except BaseException:
            if self._loading is None:
                with self._lock:
                    self._let_go()
            raise
        with self._lock:
            self._uses += may_hold
            if may_hold and self._uses % self.users and not self.place.is_at_hand:
                if self.lease is None:
                    self.lease = self._ahead.try_acquire(self.loaded_nbytes)
                if self.lease is not None:
                    if not self.place.backend.backward_writes:
                        return data, None  # which becomes a tensor for all of them
                    self._data = data
                    return borrowed(data), None
            lease, self.lease, self._data, self._rebuilt = self.lease, None, None, None
            return data, lease

    def _decode(self) -> Any:
        """Return the decoded bytes, by way of a thread that can be given up if the store may hang."""
        assert self.stored is not None, "asked to read a content that was never stored"
        if not self.place.may_hang:
            return self.place.load(self.stored)
        data = self._read(self._readers.submit(partial(_load, self.place, ref(self.stored))))
        if data is None:
            raise StoreError(f"{self.place.label}: the thread that read {self.nbytes} bytes was killed")
        return data

    def _read(self, loading: Future[Any]) -> Any:
        """Return the result of a reader, or None if the reader was lost meanwhile."""
        timeout_s = self._readers.timeout_s
        try:
            data, failure = loading.outcome(timeout_s)
        except TimeoutError as error:
            self._loading = loading  # still under way, and still in the budget
            took = f"reading {self.nbytes} bytes took longer than {timeout_s} seconds"
            cure = "the device hangs, or timeout_s is too short for it"
            raise StoreError(f"{self.place.label}: {took}; {cure}") from error
        if isinstance(failure, TensorStashError):
            # Raised as it is, it would refer to this frame, which refers to it through the future.
            raise failure.again()
        is_lost = isinstance(failure, TimeoutError | RuntimeError)
        return data if failure is None or is_lost else loading.result()

    def _let_go(self) -> Lease | None:
        """Forget the decoded bytes, under the lock; return its bytes."""
        lease, self.lease, self._data, self._rebuilt = self.lease, None, None, None
        return lease


def _load(place: Place, stored: "ref[Stored]") -> Any:
    if (wanted := stored()) is None:
        raise SlotGoneError("the graph that needed this payload was dropped before it was read")
    return place.load(wanted)
