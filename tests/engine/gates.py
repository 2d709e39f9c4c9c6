"""A store whose work can be held back and let go, so that every moment of a deferred capture can be tested."""

import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet

import tensorstash as ts
from tensorstash.host.arrays import Array
from tensorstash.policies import StoreIn
from tensorstash.protocols import Slot, Tier
from tensorstash.stores.memory import Memory, MemoryStore


@dataclass(frozen=True, eq=False)
class Gated:
    """Memory behind two gates: ``put`` waits for ``puts``, ``get`` waits for ``gets``; both start open."""

    name: ClassVar[str] = "gated"
    tier: ClassVar[Tier] = "disk"
    puts: threading.Event = field(default_factory=threading.Event)
    gets: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: list["GatedStore"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.puts.set()
        self.gets.set()

    def open(self) -> "GatedStore":
        store = GatedStore(self, Memory().open())
        self.opened.append(store)
        return store

    @property
    def slots(self) -> int:
        return sum(len(store.slots) for store in self.opened)


class GatedStore:
    """Counts what passes; copies like a disk does."""

    retains: ClassVar[bool] = False

    def __init__(self, config: Gated, inner: MemoryStore) -> None:
        self.config = config
        self.inner = inner
        self.put_count = 0
        self.get_count = 0
        self.got_on: list[str] = []
        self.slots: WeakSet[Any] = WeakSet()

    def put(self, data: Array, /) -> Slot:
        self.config.arrived.release()
        assert self.config.puts.wait(60)
        self.put_count += 1
        slot = self.inner.put(data.copy())
        self.slots.add(slot)
        return slot

    def get(self, slot: Slot, /) -> Array:
        assert self.config.gets.wait(60)
        self.get_count += 1
        self.got_on.append(threading.current_thread().name)
        return self.inner.get(slot).copy()

    def delete(self, slot: Slot, /) -> None:
        self.slots.discard(slot)
        self.inner.delete(slot)

    def close(self) -> None:
        self.inner.close()


def behind(gate: Gated, **limits: Any) -> ts.Stash:
    """Return a stash behind a gate; whatever it packs is in the store once it is drained."""
    return ts.stash(StoreIn(gate), framework="reference", min_bytes=0, limits=ts.Limits(timeout_s=60, **limits))
