"""A stored content and its way back: read when it is asked for, or ahead of that."""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from tensorstash.engine.budget import ByteBudget, Lease
from tensorstash.engine.payloads.capture import Capture
from tensorstash.engine.payloads.interleaved import InterleavedPlace
from tensorstash.engine.payloads.sequence import Trail
from tensorstash.engine.timeouts import Timeouts
from tensorstash.errors import SlotGoneError, StoreError, TensorStashError
from tensorstash.host.arrays import borrowed
from tensorstash.host.futures import Future
from tensorstash.protocols import Demand
from tensorstash.spec import TensorSpec

FEW = 4
"""A payload that is so many times smaller than its tensor is read in about the time that decoding it takes."""

Submit = Callable[[Callable[[], Any]], Future[Any]]


class _Rebuilt(NamedTuple):
    """A tensor that was handed out and may be again, as long as nobody has written into it.

    Args:
        tensor: shares memory and version with what was handed out.
        spec: its layout.
        version: of the tensor when it was handed out.
    """

    tensor: Any
    spec: TensorSpec
    version: int


class Payload:
    """One content, shared by all handles that need it; freed with the last of them. Thread-safe.

    What has been read and is still needed by another handle is held as far as the budget goes, so that a content that
    several operations saved is read once. Where backward kernels do not write into what they unpack, these share one
    tensor, as they do without hooks; whoever writes into it all the same bumps its version, and the others get another.

    Args:
        capture: where the bytes come from.
        prefetch_budget: bytes that all payloads together may hold decoded.
        timeouts: how long to wait for what is read.
    """

    __slots__ = (
        "__weakref__",
        "_data",
        "_lease",
        "_loading",
        "_lock",
        "_prefetch_budget",
        "_rebuilt",
        "_timeouts",
        "_uses",
        "capture",
        "demand",
        "index",
        "interleaved",
        "known_readers",
        "place",
        "token",
        "trusts_learned",
        "users",
    )

    is_streamed: ClassVar[bool] = False
    """Whether it can be brought back to its device before it is asked for."""

    def __init__(self, capture: Capture, prefetch_budget: ByteBudget, timeouts: Timeouts) -> None:
        self.capture = capture
        self.interleaved: InterleavedPlace | None = None
        self.index = 0
        self.token: Hashable = None
        self.users = 0
        self.place: tuple[Trail, int] | None = None
        """Where it was saved, if its codecs lose something and what will read it is found in the graph."""
        self.demand: Demand = "any"
        self.known_readers = 0
        self.trusts_learned = False
        """Whether it was encoded for readers that others of its kind had, in steps before."""
        self._prefetch_budget = prefetch_budget
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._loading: Future[Any] | None = None
        self._data: Any = None
        self._rebuilt: _Rebuilt | None = None
        self._lease: Lease | None = None  # of the bytes that are held decoded
        self._uses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the content, before encoding."""
        return self.capture.route.spec.nbytes

    @property
    def wants_reading(self) -> bool:
        """Whether reading ahead would save time: the bytes are stored, and not at hand yet."""
        return self.capture.is_stored and self._lease is None and self.capture.route.is_costly

    @property
    def is_quick(self) -> bool:
        """Whether bringing it back is hardly more than decoding: its tensor is in host memory, and its bytes are there
        already, or few."""
        if self.is_streamed:
            return False
        return self.capture.route.tier == "memory" or self.capture.stored_nbytes * FEW <= self.nbytes

    @property
    def kind(self) -> Hashable:
        """The name of contents that the same operations read in other steps; None where that is not asked."""
        return None if self.place is None else self.place[0].kind(self.place[1])

    @property
    def knows_readers(self) -> bool:
        """Whether it is known of every handle what will read it, so that :attr:`demand` is the strictest."""
        return self.known_readers >= self.users

    def waits_beyond(self, asked: int) -> bool:
        """Whether it was read ahead of the request for the payload of index ``asked``, and still waits for its own."""
        return self._loading is not None and self.index != asked

    def prefetch(self, submit: Submit) -> bool:
        """Start reading on another thread; return False if the budget has no room for the result."""
        with self._lock:
            if self._lease is None:
                self._lease = self._prefetch_budget.try_acquire(self.nbytes)
                if self._lease is None:
                    return False
                # Weakly: work that waits in a queue must not keep the slot.
                self._loading = submit(partial(_decode, ref(self.capture)))
        return True

    def prefetch_to_device(self) -> bool:
        """Start bringing it back to its device; return False to look no further ahead for now."""
        return True

    def restore(self, spec: TensorSpec) -> Any:
        """Return a tensor of the given layout that the graph does not know yet.

        Raises:
            SavedTensorModifiedError: the source was modified in place, perhaps before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded, or a load did not end in time.
        """
        route, backend = self.capture.route, self.capture.backend
        self.capture.raise_failure()
        rebuilt = self._reuse()
        if rebuilt is None:
            tensor = route.rebuild(self.load(), spec, self.interleaved)
            with self._lock:
                if self._lease is not None and self._data is None:
                    self._rebuilt = _Rebuilt(backend.detached(tensor), spec, backend.version(tensor))
            return tensor
        if rebuilt.spec == spec:
            return backend.detached(rebuilt.tensor)
        return route.copy(rebuilt.tensor, rebuilt.spec, spec)

    def _reuse(self) -> _Rebuilt | None:
        """Return what was rebuilt before, if it is still as it was."""
        with self._lock:
            rebuilt, self._rebuilt = self._rebuilt, None
            if rebuilt is None or self.capture.backend.version(rebuilt.tensor) != rebuilt.version:
                return None
            self._uses += 1
            if self._uses % self.users:
                self._rebuilt = rebuilt
                return rebuilt
        self._release()
        return rebuilt

    def load(self) -> Any:
        """Return what the route rebuilds tensors from; writable only if nobody else needs it.

        Raises:
            SavedTensorModifiedError: the source was modified in place, perhaps before its bytes were captured.
            StashError: the bytes could not be captured, loaded or decoded, or a load did not end in time.
        """
        self.capture.raise_failure()
        with self._lock:
            data, loading, self._loading = self._data, self._loading, None
        try:
            if data is None and loading is not None and not loading.cancel():
                data = self._read(loading)
            if data is None:
                data = self.capture.decode(self._timeouts.ask)
        except BaseException:
            if self._loading is None:
                self._release()
            raise
        return self._hand_out(data)

    def _read(self, loading: Future[Any]) -> Any:
        """Return what a reader has read, or None if the reader was lost meanwhile."""
        try:
            self._timeouts.wait(loading)
        except TimeoutError as error:
            self._loading = loading  # still under way, and still in the budget
            place = self.capture.route.store_place
            raise StoreError(f"{place}: reading {self.nbytes} bytes {error}") from error
        failure = loading.exception()
        if isinstance(failure, TensorStashError):
            # Raised as it is, it would refer to this frame, which refers to it through the future.
            raise failure.again()
        return None if isinstance(failure, TimeoutError | RuntimeError) else loading.result()

    def _hand_out(self, data: Any) -> Any:
        with self._lock:
            self._uses += 1
            # What stays on its device is at hand as it is.
            needed = self._uses % self.users != 0 and self.capture.route.tier != "device"
            if needed and self._lease is None:
                self._lease = self._prefetch_budget.try_acquire(self.nbytes)
            if needed and self._lease is not None:
                if not self.capture.backend.backward_writes:
                    return data  # which becomes a tensor for all of them
                self._data = data
                return borrowed(data)
        self._release()
        return data

    def _release(self) -> None:
        with self._lock:
            self._data = self._rebuilt = None
            self._lease = None


def _decode(capture: ref[Capture]) -> Any:
    wanted = capture()
    if wanted is None:
        raise SlotGoneError("the graph that needed this payload was dropped before it was read")
    return wanted.decode()
