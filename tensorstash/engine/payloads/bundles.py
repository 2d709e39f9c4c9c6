"""Small payloads that are one record of a store together.

What a thread is handed costs more than a small tensor's bytes do: it wants the interpreter's lock, for which the
program waits. So small payloads are copied where they are saved, side by side, and threads are handed many at once.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any
from weakref import ref

import numpy as np

from tensorstash.abilities import Backend
from tensorstash.engine.payloads.pipeline import Stored, count_back
from tensorstash.engine.payloads.route import HostRoute
from tensorstash.engine.timeouts import Timeouts
from tensorstash.errors import StashError, StoreError, TensorStashError
from tensorstash.host.arrays import Array, address, as_bytes, borrowed, payload_empty
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.futures import Future
from tensorstash.protocols import Slot
from tensorstash.spec import ALIGNMENT, TensorSpec

BUNDLE_BYTES = 2**20
"""Most bytes of a bundle: with more, handing it over is a small part of what it takes, and it only waits longer."""

LEAST_PARTS = 4
"""How many payloads of a size have to fit into a bundle, or they go alone."""

Submit = Callable[[Callable[[], Any]], Future[Any]]


class Bundle:
    """A record of a store that holds small payloads, each of which has a slot here. Thread-safe.

    Its bytes are in memory until they are written. Whoever asks for one payload brings all of them back, and they stay
    as long as others may be asked for, as far as the budget of what is read ahead goes; each gets a copy. So a payload
    may be asked for in any order, any number of times.

    The payloads own it, and whatever waits in a queue knows it only weakly: with the last of them it goes, together
    with its record, and with its work if that has not begun.

    Args:
        route: of the first payload; the others' may differ in what they are taken from, not in their store.
        nbytes: most bytes that it may hold.
        lease: of as many, which are on their way until they are written; whoever has them written releases it.
        prefetch_budget: bytes that may be read before they are asked for.
        timeouts: how long to wait for the store.
    """

    __slots__ = (
        "__weakref__",
        "_awaited",
        "_error",
        "_fill",
        "_held",
        "_is_begun",
        "_ledger",
        "_loading",
        "_lock",
        "_parts",
        "_pipeline",
        "_prefetch_budget",
        "_read_lease",
        "_timeouts",
        "_whole",
        "lease",
        "room",
    )

    def __init__(
        self, route: HostRoute, nbytes: int, lease: Lease, prefetch_budget: ByteBudget, timeouts: Timeouts
    ) -> None:
        self._pipeline, self._ledger = route.pipeline, route.ledger
        self._prefetch_budget, self._timeouts = prefetch_budget, timeouts
        self.lease = lease
        self._held: Array | None = payload_empty(nbytes)
        self._fill = 0
        self.room = nbytes
        """Bytes that can be added; none once it is being written."""
        self._parts: list[tuple[ref[Stored], TensorSpec]] = []
        self._is_begun = False
        self._whole: Stored | None = None
        self._error: TensorStashError | None = None
        self._awaited: set[Slot] = set()  # payloads that are alive and were not handed out since it was read
        self._loading: Future[None] | None = None
        self._read_lease: Lease | None = None
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    # Into the store

    def add(self, source: Any, spec: TensorSpec, backend: Backend[Any]) -> Stored | None:
        """Copy a tensor of ``spec``, or its elements, and return the place; None if there is no room any more."""
        data = as_bytes(source if isinstance(source, np.ndarray) else backend.to_host(source, spec))
        with self._lock:
            start, stop = self._fill, self._fill + data.size
            held = self._held
            if data.size > self.room or held is None:
                return None
            held.data[start:stop] = data.data  # NumPy would let go of the interpreter's lock, and wait for it again
            stored = Stored(self, (start, stop), data.size)
            fill = -(-stop // ALIGNMENT) * ALIGNMENT
            room = held.size - fill
            self._fill, self.room = fill, room  # at once, and first: an interrupt leaves at worst a gap
            self._parts.append((ref(stored), spec))
        return stored

    def write(self) -> None:
        """Put it into the store, if nobody has begun with that; a failure is kept for whoever asks for a payload."""
        with self._lock:
            held = self._held
            if self._is_begun or held is None:
                return
            self._is_begun, self.room = True, 0
        started = perf_counter()
        try:
            self._whole = self._pipeline.persist(borrowed(held[: self._fill]))
        except TensorStashError as error:
            self._error = error.again()
        except Exception as error:
            self._error = StoreError(f"{type(error).__name__}: {error}").again()
        else:
            parts = [(part, spec) for known, spec in self._parts if (part := known()) is not None]
            for part, spec in parts:
                self._ledger.stored(part, self._pipeline.tier, part.nbytes, spec)
            nbytes = sum(part.nbytes for part, _ in parts)
            self._pipeline.runs.count_in(nbytes, nbytes, started, len(parts))
        # Last: who finds no bytes takes the record or the error.
        self._held = None

    # Back

    @property
    def wants_reading(self) -> bool:
        """Whether reading ahead would save time."""
        loading = self._loading
        return self._whole is not None and self._held is None and (loading is None or loading.done())

    @property
    def is_prefetched(self) -> bool:
        """Whether its bytes are counted among what is read ahead."""
        return self._read_lease is not None

    def prefetch(self, submit: Submit) -> bool:
        """Start reading on another thread; return False if the budget has no room for it. Not thread-safe."""
        if self.wants_reading:
            if self._prefetch_budget.used + self._fill > self._prefetch_budget.limit:
                return False
            lease = self._prefetch_budget.try_acquire(self._fill)
            if lease is None:
                return False
            self._read_lease = lease
            self._loading = submit(partial(_read, ref(self)))  # without the lock, which it takes, perhaps at once
        return True

    def get(self, slot: Any, /) -> Array:
        """Return a private copy of a payload.

        Raises:
            StashError: the bundle could not be stored or read, or that did not end in time.
        """
        start, stop = slot
        held = self._held
        if held is None:
            held = self._bring_back()
        data = np.empty(stop - start + ALIGNMENT, np.uint8)  # soon gone, and small: no pool's
        data = data[-address(data) % ALIGNMENT :][: stop - start]
        data.data[:] = held.data[start:stop]  # as in :meth:`add`
        self.delete(slot)
        return data

    def delete(self, slot: Slot, /) -> None:
        """Await no request for a payload any more. Takes no lock: it is called from finalizers."""
        awaited = self._awaited
        awaited.discard(slot)
        if not awaited and self._whole is not None and self._held is not None:
            self._held = self._read_lease = None

    def drop(self) -> int:
        """Drop what was read, to be read again for whoever asks; return its bytes, 0 if there were none."""
        loading = self._loading
        if loading is not None and not loading.cancel():
            self._wait(loading)
        with self._lock:
            if self._read_lease is None or self._loading is not loading:
                return 0
            self._loading = self._held = self._read_lease = None
        return self._fill

    def read(self) -> None:
        """Read it, and hold its bytes."""
        assert self._whole is not None, "asked to read what was never stored"
        started = perf_counter()
        self._hold(self._pipeline.fetch(self._whole))
        count_back(self._pipeline.runs, started, loads=0)  # each payload is one when it is asked for

    def _bring_back(self) -> Array:
        """Return its bytes from the store, and hold them if the budget has room."""
        if self._error is not None:
            raise self._error.again()
        with self._lock:
            loading, self._loading = self._loading, None
        if loading is not None and not loading.cancel():
            self._wait(loading)
            held = self._held
            if held is not None:
                return held
        whole = self._whole
        assert whole is not None, "asked to read what was never stored"
        try:
            data: Array = self._timeouts.ask(partial(self._pipeline.fetch, whole))
        except BaseException as error:
            self._read_lease = None
            if isinstance(error, TimeoutError | RuntimeError) and not isinstance(error, StashError):
                raise StoreError(f"reading {self._fill} bytes {error}") from error
            raise
        self._hold(data)
        return data

    def _wait(self, loading: Future[None]) -> None:
        try:
            self._timeouts.wait(loading)
        except TimeoutError as error:
            self._loading = loading  # still under way, and still in the budget
            raise StoreError(f"reading {self._fill} bytes {error}") from error

    def _hold(self, data: Array) -> None:
        with self._lock:
            if self._read_lease is None:
                self._read_lease = self._prefetch_budget.try_acquire(self._fill)
            if self._read_lease is not None:
                self._awaited = {part.slot for known, _ in self._parts if (part := known()) is not None}
                self._held = data


def write(bundle: ref[Bundle]) -> None:
    """Write a bundle, if one of its payloads is still needed."""
    if (wanted := bundle()) is not None:
        wanted.write()


def _read(bundle: ref[Bundle]) -> None:
    """Read a bundle ahead, if one of its payloads is still needed."""
    if (wanted := bundle()) is not None:
        with suppress(Exception):  # who asks reads it again, and is told; kept for that, it would be a cycle
            wanted.read()
