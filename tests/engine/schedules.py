"""Budgets that are looked at all the way, and a device that stalls until somebody waits for it."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planted_faults import Opened

from tensorstash.host.arrays import Array
from tensorstash.host.budget import ByteBudget, Lease
from tensorstash.host.pages import BLOCK
from tensorstash.protocols import Slot, StoreConfig
from tensorstash.stores import Disk, Memory
from tensorstash.stores.disk.store import DiskStore


def budgeted(directory: str) -> list[StoreConfig]:
    """Return stores of each tier with budgets that some programs exceed."""
    memories = [Memory(budget=nbytes) for nbytes in (100, 800, 4000)]
    disks = [Disk(directory=directory, budget=blocks * BLOCK) for blocks in (2, 6, 40)]
    return [*memories, *disks, *(replace(memory, then=disk) for memory in memories[:2] for disk in disks[:2])]


class TellingBudget(ByteBudget):
    """A budget that opens a gate when somebody has to wait for bytes."""

    def __init__(self, limit: int, gate: threading.Event) -> None:
        super().__init__(limit)
        self._gate = gate
        self.waits = 0

    def acquire(self, nbytes: int, *, timeout_s: float) -> Lease | None:
        if (lease := self.try_acquire(nbytes)) is not None:
            return lease
        self.waits += 1
        self._gate.set()
        return super().acquire(nbytes, timeout_s=timeout_s)


@dataclass
class Auditor:
    """Looks after every put at what stores really hold, and holds the first put of a writer back until the gate opens.

    Args:
        stores: what is looked at; filled as stores open.
        gate: opens when a thread has to wait for bytes in flight, or has saved all it had to save.
        stalls: which put of a writer waits for the gate; 0 for none.
    """

    stores: Opened
    stalls: int
    gate: threading.Event = field(default_factory=threading.Event)
    puts: int = 0
    excess: list[str] = field(default_factory=list)

    def put(self, call: Callable[[Array], Slot], data: Array) -> Slot:
        if threading.current_thread().name.startswith("tensorstash-writer"):
            self.puts += 1
            if self.puts == self.stalls:
                assert self.gate.wait(60)
        try:
            return call(data)
        finally:
            self.audit()

    def audit(self) -> None:
        for store, config in list(self.stores.items()):
            taken = store.used_bytes
            if isinstance(store, DiskStore) and not store.slab.file.closed:
                taken = max(taken, os.fstat(store.slab.file.fileno()).st_size)
            if config.budget is not None and taken > config.budget:
                self.excess.append(f"{taken} bytes in {config!r}")
