"""A store that tells what it holds, whatever a session's statistics say."""

import itertools
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from tensorstash.host.arrays import Array
from tensorstash.protocols import Slot, Store, StoreConfig, Tier
from tensorstash.stores.memory import Memory


class Tap:
    """Counts what goes in and out of every store that was opened with it. Thread-safe.

    >>> import numpy as np
    >>> tap = Tap()
    >>> store = Watched(tap=tap).open()
    >>> slot = store.put(np.zeros(3, np.uint8))
    >>> tap.puts, tap.live, tap.live_bytes
    (1, 1, 3)
    >>> store.delete(slot)
    >>> tap.puts, tap.live, tap.live_bytes, tap.peak_bytes
    (1, 0, 0, 3)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._serials = itertools.count()
        self._deleted: deque[tuple[int, Slot]] = deque()
        self._closed: deque[int] = deque()
        self._sizes: dict[tuple[int, Slot], int] = {}
        self._open: set[int] = set()
        self.puts = 0
        """Payloads put so far."""
        self.gets = 0
        """Payloads read so far."""
        self.peak_bytes = 0
        """Largest :attr:`live_bytes` so far."""

    @property
    def live(self) -> int:
        """Payloads that have been put and not deleted."""
        with self._lock:
            self._settle()
            return len(self._sizes)

    @property
    def live_bytes(self) -> int:
        """Their bytes."""
        with self._lock:
            self._settle()
            return sum(self._sizes.values())

    @property
    def open_stores(self) -> int:
        """Stores that have been opened, and neither closed nor forgotten."""
        with self._lock:
            self._settle()
            return len(self._open)

    def opened(self) -> int:
        """Note that a store was opened, and return its serial number."""
        with self._lock:
            serial = next(self._serials)
            self._open.add(serial)
            return serial

    def put(self, serial: int, slot: Slot, nbytes: int) -> None:
        """Note a payload."""
        with self._lock:
            self._settle()
            self.puts += 1
            self._sizes[serial, slot] = nbytes
            self.peak_bytes = max(self.peak_bytes, sum(self._sizes.values()))

    def got(self) -> None:
        """Note a read."""
        with self._lock:
            self.gets += 1

    def deleted(self, serial: int, slot: Slot) -> None:
        """Note a deletion; takes no lock, since finalizers call it."""
        self._deleted.append((serial, slot))

    def closed(self, serial: int) -> None:
        """Note that a store is closed; takes no lock, since finalizers call it."""
        self._closed.append(serial)

    def _settle(self) -> None:
        while self._deleted:
            self._sizes.pop(self._deleted.popleft(), None)
        while self._closed:
            self._open.discard(self._closed.popleft())


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A store whose traffic a tap counts.

    Args:
        inner: the store that holds the payloads.
        tap: the counter; two configurations are equal only if they share it.
    """

    name: ClassVar[str] = "watched"
    tier: ClassVar[Tier] = "memory"
    inner: StoreConfig = field(default_factory=Memory)
    tap: Tap = field(default_factory=Tap)

    def open(self) -> Store:
        """Open the inner store; the caller closes it."""
        return WatchedStore(self.inner.open(), self.tap)


class WatchedStore:
    """The live store of :class:`Watched`. Thread-safe if the inner one is."""

    retains: ClassVar[bool] = True

    def __init__(self, inner: Store, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap
        self._serial = tap.opened()

    def put(self, data: Array, /) -> Slot:
        """Store the bytes and count them."""
        nbytes = data.nbytes
        slot = self._inner.put(data)
        self._tap.put(self._serial, slot, nbytes)
        return slot

    def get(self, slot: Slot, /) -> Array:
        """Return the bytes that were put."""
        self._tap.got()
        return self._inner.get(slot)

    def delete(self, slot: Slot, /) -> None:
        """Free the slot; idempotent, never blocks."""
        self._inner.delete(slot)
        self._tap.deleted(self._serial, slot)

    def close(self) -> None:
        """Close the inner store; idempotent."""
        self._inner.close()
        self._tap.closed(self._serial)

    def __del__(self) -> None:
        self._tap.closed(self._serial)
