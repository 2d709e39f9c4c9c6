"""How to open a store of each kind, and of each fallback."""

from collections.abc import Callable
from pathlib import Path

from tensorstash.protocols import Store
from tensorstash.stores import Disk, Memory, Tiered
from tensorstash.stores.disk.store import DiskStore
from tensorstash.stores.disk.syscalls import Syscalls

Budget = int | None
OpenStore = Callable[[Path, Budget], Store]

PIECE = 4 * 2**20
"""Bytes of a large record."""


def _without(**switched_off: bool) -> OpenStore:
    return lambda path, budget: DiskStore(Disk(directory=str(path), budget=budget), Syscalls(**switched_off))


def _tiered(path: Path, budget: Budget) -> Store:
    half = None if budget is None else budget // 2
    return Tiered(first=Memory(budget=half or 0), then=Disk(directory=str(path), budget=half)).open()


STORES: dict[str, OpenStore] = {
    "memory": lambda path, budget: Memory(budget=budget).open(),
    "disk": lambda path, budget: Disk(directory=str(path), budget=budget).open(),
    "disk_buffered": lambda path, budget: Disk(directory=str(path), budget=budget, direct=False).open(),
    "disk_without_unnamed_files": _without(unnamed=False),
    "disk_without_unlinking": _without(unnamed=False, unlink_open=False),
    "disk_without_preallocation": _without(preallocate=False),
    "disk_without_positioned_calls": _without(positioned=False, direct=False),
    "tiered": _tiered,
}
"""How to open each store with a budget in bytes."""
