"""Captures payloads behind the program, as fast as a budget lets it."""

import threading
from collections import deque
from functools import partial
from operator import itemgetter
from typing import Any
from weakref import ref

from tensorstash.abilities import Backend, SupportsStorageRelease
from tensorstash.engine.limits import AUTO, Limits
from tensorstash.engine.payloads.encoding import Encoding
from tensorstash.engine.payloads.payload import Payload
from tensorstash.engine.timeouts import Timeouts
from tensorstash.errors import StoreError
from tensorstash.host.budget import ByteBudget, Shares
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.workers import Workers

_nbytes = itemgetter(1)


class ResidentWindow:
    """Puts off the capture of what was saved last, and is needed first, within a number of bytes. Thread-safe.

    It knows payloads only weakly: a handle that is dropped meanwhile takes its payload with it, and what is still
    waiting when backward asks for it has never been moved.

    Args:
        limit: most bytes that may wait.
    """

    __slots__ = ("__weakref__", "_lock", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: deque[tuple[ref[Payload], int]] = deque()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def add(self, payload: Payload) -> list[Payload]:
        """Let a payload wait; return those that must no longer, the oldest first, perhaps with this one among them."""
        nbytes = max(payload.nbytes, 1)  # an empty one must not wait for ever
        with self._lock:
            self._waiting.append((ref(payload), nbytes))
            return self._due(self.limit)

    def clear(self) -> list[Payload]:
        """Let none wait any longer, and return them."""
        with self._lock:
            return self._due(0)

    def _due(self, most_bytes: int) -> list[Payload]:
        due: list[Payload] = []
        used = sum(map(_nbytes, self._waiting))  # counted anew: an interrupt may have come between two steps
        while used > most_bytes:
            known, nbytes = self._waiting.popleft()
            used -= nbytes
            if (payload := known()) is not None:
                due.append(payload)
        return due


class Sender:
    """Has payloads captured on workers, oldest first, behind the window of those that stay for a while.

    Args:
        limits: byte budgets and the timeout.
        encoding: where codecs run.
        backend: the framework's adapter.
    """

    def __init__(self, limits: Limits, encoding: Encoding, backend: Backend[Any]) -> None:
        self._encoding = encoding
        self._release_storages = backend.release_storages if isinstance(backend, SupportsStorageRelease) else None
        self.shares = Shares()
        """How much may be on its way, where the limits do not say so."""
        self.timeouts = Timeouts(limits.timeout_s)
        """How long to wait for a store."""
        self.writers = Workers("tensorstash-writer", limits.writers, timeout_s=limits.timeout_s)
        self.in_flight = self.shares.budget(limits.in_flight_bytes, is_share=limits.in_flight == AUTO)
        """Bytes that are on their way."""
        self._resident = ResidentWindow(limits.resident_bytes)

    def ahead(self, limits: Limits) -> ByteBudget:
        """Return a budget of what may be read back early, which is a share as this one's is."""
        return self.shares.budget(limits.ahead_bytes, is_share=limits.ahead == AUTO)

    def start(self, payload: Payload) -> None:
        """Send a payload on its way, or let it wait in the window.

        Raises:
            StoreError: the store hangs, or a payload too large for the budget was refused by it.
        """
        self.shares.saw(payload.nbytes)
        if self._release_storages is not None:
            self._release_storages(self.in_flight.limit)
        if not payload.route.needs_worker:
            payload.launch()
            return
        may_wait = payload.route.may_wait and self._resident.limit
        for due in self._resident.add(payload) if may_wait else (payload,):
            self._begin(due)
        if payload.nbytes > self.in_flight.limit:
            payload.raise_store_failure()

    def wait_for(self, nbytes: int) -> bool:
        """Wait until so many bytes of those that are on their way have arrived, or all; return whether any have.

        Args:
            nbytes: more than none.
        """
        used = self.in_flight.used
        if not used:
            return False
        lease = self.in_flight.acquire(self.in_flight.limit - max(used - nbytes, 0), timeout_s=self.timeouts.timeout_s)
        if lease is not None:
            lease.release()
        return lease is not None

    def drain(self) -> None:
        """Wait until everything has been captured.

        Raises:
            StoreError: it was not within ``timeout_s``.
        """
        for payload in self._resident.clear():
            self._begin(payload)
        timeout_s = self.timeouts.timeout_s
        if not self.in_flight.wait_until_unused(timeout_s=timeout_s):
            used = self.in_flight.used
            self.writers.abandon()
            raise StoreError(f"{used} bytes are still on their way after {timeout_s} seconds")

    def _begin(self, payload: Payload) -> None:
        """Capture the bytes on a worker, or here where too many are on their way; a failure is kept for later."""
        nbytes = payload.nbytes
        if self._encoding.is_now_or_full(payload.route, nbytes, self.in_flight):
            if payload.is_streamed:
                payload.launch()
            if payload.route.has_codecs and self._encoding.shares_out:
                with self._encoding.team:
                    payload.run(self.timeouts.ask)
            else:
                payload.run(self.timeouts.ask)
            return
        timeout_s = self.timeouts.timeout_s
        lease = self.in_flight.acquire(nbytes, timeout_s=timeout_s)
        if lease is None:
            used = self.in_flight.used
            self.writers.abandon()
            raise StoreError(
                f"{payload.route.store_place}: {used} bytes have been on their way into the store for "
                f"{timeout_s} seconds; the device hangs, or timeout_s is too short for it"
            )
        try:
            payload.launch()
            # Weakly: a handle that is dropped before its turn takes its work with it. The lease ends with the work,
            # also when its thread is lost: what that still holds is written off.
            self.writers.submit(partial(_capture, ref(payload)), ended=lease.release)
        except BaseException:
            lease.release()
            raise


def _capture(payload: ref[Payload]) -> None:
    wanted = payload()
    if wanted is not None:
        wanted.run()
