"""When a saved tensor is captured, and where: once nobody else holds its memory, and behind the program."""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import islice
from operator import call
from time import monotonic
from typing import Any
from weakref import ref

from tensorstash.abilities import Backend, SupportsHolders, SupportsStorageRelease
from tensorstash.engine.payloads.bundles import BUNDLE_BYTES, LEAST_PARTS, Bundle, write
from tensorstash.engine.payloads.payload import Payload, capture
from tensorstash.engine.payloads.route import HostRoute, PayloadRoute
from tensorstash.engine.stats import Tally
from tensorstash.engine.timeouts import Timeouts
from tensorstash.errors import StoreError
from tensorstash.host.budget import LOOK_AGAIN_S, ByteBudget, Lease, Shares
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pool import IDLE_BYTES, POOL
from tensorstash.host.workers import Workers
from tensorstash.policies.limits import AUTO, Limits

_LOOKS = 8
"""Memories that are looked at per saved tensor, of the newest and of the others in turn: each look costs a microsecond,
and a program may hold thousands."""


class Held:
    """Payloads that wait until nobody else holds the memory of their source. Thread-safe.

    Whoever holds the memory can write to it, with or without a new version, and may resize or free it. Once the aliases
    of the waiting payloads are all that is left of it, nobody can any more: what is captured from then on is what
    backward would have read without hooks, whenever the capture happens.

    It knows payloads only weakly: a handle that is dropped takes its payload with it.

    A payload whose codecs lose something waits, too, until it is known what will read it.

    Args:
        backend: tells who holds the memory of a tensor.
    """

    __slots__ = ("__weakref__", "_backend", "_groups", "_holders", "_lock")

    def __init__(self, backend: SupportsHolders[Any]) -> None:
        self._backend = backend
        self._holders = backend.holders
        self._groups: dict[Hashable, list[ref[Payload]]] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    def add(self, token: Hashable, payload: Any) -> list[Any]:
        """Let a payload wait, or another with its attributes, whose source is the only alias of the memory that it
        holds; return others, as :meth:`freed`."""
        with self._lock:
            freed = self._freed()  # without this one: as long as it is being saved its memory is held
            self._groups.setdefault(token, []).append(ref(payload))
            payload.token = token
        return freed

    def freed(self, *, all_of_them: bool = False) -> list[Any]:
        """Return payloads that nobody else holds the memory of any more; they wait no longer.

        Args:
            all_of_them: look at every memory, instead of a few of them each time, and wait for no reader.
        """
        with self._lock:
            return self._taken(list(self._groups), unread=True) if all_of_them else self._freed()

    def clear(self) -> list[Any]:
        """Let none wait any longer, whoever holds their memory, and return them; but for memory that is not there."""
        with self._lock:
            groups, self._groups = self._groups, {}
            cleared: list[Payload] = []
            for token, group in groups.items():
                live = _live(group)
                if all(self._backend.is_there(payload.alias, payload.spec) for payload in live):
                    cleared += live
                else:
                    self._groups[token] = group
            return cleared

    def may_give(self, payload: Any) -> bool:
        """Whether the source of a payload may be handed out as it is.

        Whoever gets it may write into it. That is as without hooks while somebody else holds the memory, and does no
        harm if nobody asks for it again.
        """
        return self.holds(payload) or (payload.users == 1 and not self._backend.keeps_graph())

    def holds(self, payload: Any) -> bool:
        """Whether somebody besides the graph holds the memory of a payload that waits."""
        with self._lock:
            group = self._groups.get(payload.token, [])
            return ref(payload) in group and self._holders(payload.alias) > len(_live(group))

    def tally(self) -> Tally:
        """Return how many payloads wait, and their bytes."""
        with self._lock:
            waiting = [payload.nbytes for group in self._groups.values() for payload in _live(group)]
        return Tally(len(waiting), sum(waiting))

    def _freed(self) -> list[Payload]:
        if len(self._groups) <= 2 * _LOOKS:
            return self._taken(list(self._groups), unread=False)
        newest = list(islice(reversed(self._groups), _LOOKS))
        oldest = list(islice(self._groups, _LOOKS))
        freed = self._taken([*oldest, *newest], unread=False)
        for token in oldest:  # the others have their turn before these
            if token in self._groups:
                self._groups[token] = self._groups.pop(token)
        return freed

    def _taken(self, tokens: Iterable[Hashable], *, unread: bool) -> list[Payload]:
        # Without frames of Python but one for each memory: it runs for every saved tensor.
        taken: list[Payload] = []
        for token in tokens:
            group = self._groups[token]
            live = list(filter(None, map(call, group)))
            is_ready = True
            for payload in () if unread else live:
                reading = payload.reading
                is_ready = is_ready and (reading is None or reading.known >= payload.users)
            if not live or (is_ready and self._holders(live[0].alias) <= len(live)):
                del self._groups[token]
                taken += live
                for payload in live:
                    payload.is_alone = True
            elif len(live) < len(group):
                self._groups[token] = [ref(payload) for payload in live]
        return taken


def _live(group: list[ref[Payload]]) -> list[Payload]:
    return list(filter(None, map(call, group)))


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

    def clear(self) -> list[Any]:
        """Let none wait any longer, and return them."""
        with self._lock:
            return self._due(0)

    def _due(self, most_bytes: int) -> list[Payload]:
        due: list[Payload] = []
        used = sum(nbytes for _, nbytes in self._waiting)  # counted anew: an interrupt may have come between two steps
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
        backend: the framework's adapter.
    """

    def __init__(self, limits: Limits, backend: Backend[Any]) -> None:
        self._release_storages = backend.release_storages if isinstance(backend, SupportsStorageRelease) else None
        self.shares = Shares()
        """How much may be on its way, where the limits do not say so."""
        self.timeouts = Timeouts(limits.timeout_s)
        """How long to wait for a store."""
        self.writers = Workers("tensorstash-writer", limits.writers, timeout_s=limits.timeout_s)
        self.in_flight = self.shares.budget(limits.in_flight_bytes, is_share=limits.in_flight == AUTO)
        """Bytes that are on their way."""
        self.bundles_prefetched = ByteBudget(0)
        """Bytes of bundles that are read: few, and besides what else is, which may be two tensors to the byte."""
        self._resident = ResidentWindow(limits.resident_bytes)
        self._saving_bytes = self._saved_bytes = 0
        self._worth_bytes = IDLE_BYTES
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew, and leave to the parent what it was filling."""
        self._lock = threading.Lock()
        self._bundles: dict[int, Callable[[], Bundle | None]] = {}  # which are filled, weakly, by their store

    def entry_began(self, saved_bytes: int, *, is_a_step: bool) -> None:
        """Leave no more host memory idle than saving has last used: what backward has read back is needed no more.

        Args:
            saved_bytes: by which payloads were smaller than their tensors, or elsewhere, so far.
            is_a_step: whether backward has asked for something since the last entry.
        """
        used, _ = POOL.take_stock()
        if is_a_step:
            self._worth_bytes, self._saved_bytes = saved_bytes - self._saved_bytes, saved_bytes
            POOL.give_back(max(self._saving_bytes - used, 0))

    def entry_ended(self, saved_bytes: int) -> None:
        """Note how much host memory saving has used; leave no more idle from now on than a step saves or payloads take.

        Else a policy that finds little to save would have a higher peak than none. What is on its way may be saved yet.

        Args:
            saved_bytes: as when the entry began.
        """
        self._send_bundles()
        used, self._saving_bytes = POOL.take_stock()
        POOL.worth(max(min(self._worth_bytes, saved_bytes - self._saved_bytes + self.in_flight.used), used))

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

    def is_now(self, route: PayloadRoute, nbytes: int) -> bool:
        """Whether to encode in the hook: it is quick there, or a tensor of so many bytes finds no room behind."""
        limit = self.in_flight.limit
        return nbytes > limit or route.is_now or (route.may_be_now and self.in_flight.used + nbytes > limit)

    def wait_for(self, nbytes: int) -> bool:
        """Wait until so many bytes of those that are on their way have arrived, or all; return whether any have.

        Args:
            nbytes: more than none.
        """
        self._send_bundles()
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
        self._send_bundles()
        timeout_s = self.timeouts.timeout_s
        if not self.in_flight.wait_until_unused(timeout_s=timeout_s):
            used = self.in_flight.used
            self.writers.abandon()
            raise StoreError(f"{used} bytes are still on their way after {timeout_s} seconds")

    def _begin(self, payload: Payload) -> None:
        """Capture the bytes on a worker, or here where too many are on their way; a failure is kept for later."""
        route, nbytes = payload.route, payload.nbytes
        if nbytes <= route.small_bytes and self._gather(payload):
            return
        if self.is_now(route, nbytes):
            if payload.is_streamed:
                payload.launch()
            payload.run(self.timeouts.ask)
            return
        lease = self._room_for(nbytes, route)
        try:
            payload.launch()
            # Weakly: a handle that is dropped before its turn takes its work with it. The lease ends with the work,
            # also when its thread is lost: what that still holds is written off.
            self.writers.submit(partial(capture, ref(payload)), ended=lease.release)
        except BaseException:
            lease.release()
            raise

    def _room_for(self, nbytes: int, route: PayloadRoute) -> Lease:
        lease = self.in_flight.try_acquire(nbytes)
        deadline = monotonic() + self.timeouts.timeout_s
        while lease is None and monotonic() < deadline:
            self._send_bundles()  # each time: another thread may have begun one meanwhile, and be done with it
            lease = self.in_flight.acquire(nbytes, timeout_s=LOOK_AGAIN_S)
        if lease is None:
            used = self.in_flight.used
            self.writers.abandon()
            raise StoreError(
                f"{route.store_place}: {used} bytes have been on their way into the store for "
                f"{self.timeouts.timeout_s} seconds; the device hangs, or timeout_s is too short for it"
            )
        return lease

    def _gather(self, payload: Payload) -> bool:
        """Copy a small payload into a bundle, which is sent once it is full; return False if it has to go alone."""
        route, nbytes = payload.route, payload.nbytes
        assert isinstance(route, HostRoute), "what is not stored by the host"
        if not nbytes or payload.seen is not None or payload.interleaved is not None:
            return False  # a plan, or a memory that is shared, counts what it holds by itself
        bundle = self._bundles.get(id(route.pipeline.store), _nothing)()
        if bundle is None or bundle.room < nbytes:
            bundle = self._bundle_for(route, nbytes, payload.prefetch_budget)
        if bundle is None:
            return False
        payload.bundle = bundle
        payload.run(self.timeouts.ask)
        if bundle.room < nbytes:  # of the next there is most likely as much
            self._send(bundle)
        return True

    def _bundle_for(self, route: HostRoute, nbytes: int, ahead: ByteBudget) -> Bundle | None:
        """Return a bundle with room for so many bytes; None if few as large would fit into any."""
        # Half of what may be under way: one is filled, or used, while another is written, or read.
        size = min(BUNDLE_BYTES, self.in_flight.limit // 2, ahead.limit // 2)
        if nbytes > size // LEAST_PARTS:
            return None
        store = id(route.pipeline.store)
        bundle = self._bundles.get(store, _nothing)()
        while bundle is None or bundle.room < nbytes:
            if bundle is not None:
                self._send(bundle)
            self.bundles_prefetched.limit = max(self.bundles_prefetched.limit, 2 * size)
            fresh = Bundle(route, size, self._room_for(size, route), self.bundles_prefetched, self.timeouts)
            with self._lock:
                known = self._bundles.get(store, _nothing)()
                if known is None:  # else another thread has come first
                    self._bundles[store] = ref(fresh)
            bundle = known or fresh
            del fresh  # or it would keep its room while another is waited for
        return bundle

    def _send_bundles(self) -> None:
        """Have bundles written that others could be added to."""
        for known in list(self._bundles.values()):
            bundle = known()
            if bundle is not None:
                self._send(bundle)

    def _send(self, bundle: Bundle) -> None:
        # Weakly, as above. First: what an interrupt leaves among those that are filled is sent again, and written once.
        self.writers.submit(partial(write, ref(bundle)), ended=bundle.lease.release)
        with self._lock:
            self._bundles = {store: known for store, known in self._bundles.items() if known() not in (None, bundle)}


def _nothing() -> None:
    return None
