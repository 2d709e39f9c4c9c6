from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from altering_calls import AlteringCalls

from tensorstash import registry
from tensorstash.protocols import Store, StoreConfig, Tier
from tensorstash.stores.disk.store import Disk, DiskStore
from tensorstash.stores.disk.syscalls import Syscalls
from tensorstash.stores.memory import Memory
from tensorstash.stores.tiered import Tiered
from tensorstash.testing import FaultyStore, Gate, Gated, StoreSuite, Watched


class TestMemory(StoreSuite):
    refused = ({"budget": -1}, {"budget": "plenty"}, {"budget": 1.5})

    def config(self, directory: str) -> StoreConfig:
        return Memory()

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Memory(budget=budget_bytes)


class TestDisk(StoreSuite):
    refused = ({"budget": "plenty"}, {"directory": 3}, {"directory": ""}, {"direct": "yes"})

    def config(self, directory: str) -> StoreConfig:
        return Disk(directory=directory)

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Disk(directory=directory, budget=budget_bytes)

    def on_a_device_that_alters(self, directory: str) -> Store:
        return DiskStore(Disk(directory=directory), AlteringCalls())


class TestBufferedDisk(TestDisk):
    def config(self, directory: str) -> StoreConfig:
        return Disk(directory=directory, direct=False)


@dataclass(frozen=True, kw_only=True)
class Limited:
    """A store on disk where the system cannot do something."""

    name: ClassVar[str] = "limited"
    tier: ClassVar[Tier] = "disk"
    directory: str
    lacks: tuple[str, ...]

    def open(self) -> Store:
        calls = Syscalls(**dict.fromkeys(self.lacks, False))
        return DiskStore(Disk(directory=self.directory), calls)


class TestDiskWithoutUnnamedFiles(StoreSuite):
    is_registered = False
    lacks: ClassVar[tuple[str, ...]] = ("unnamed",)

    def config(self, directory: str) -> StoreConfig:
        return Limited(directory=directory, lacks=self.lacks)


class TestDiskWithoutUnlinking(TestDiskWithoutUnnamedFiles):
    lacks = ("unnamed", "unlink_open")


class TestDiskWithoutPreallocation(TestDiskWithoutUnnamedFiles):
    lacks = ("preallocate",)


class TestDiskWithoutPositionedCalls(TestDiskWithoutUnnamedFiles):
    lacks = ("positioned", "direct")


class TestTiered(StoreSuite):
    refused = ({"first": 3, "then": Memory()}, {"first": Memory, "then": Memory()})

    def config(self, directory: str) -> StoreConfig:
        return Tiered(first=Memory(budget=20_000), then=Disk(directory=directory))

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        half = budget_bytes // 2
        return Tiered(first=Memory(budget=half), then=Disk(directory=directory, budget=half))


class TestWatched(StoreSuite):
    is_registered = False
    watched = Watched()

    def config(self, directory: str) -> StoreConfig:
        return self.watched


class TestFaultyStoreWithoutItsFault(StoreSuite):
    is_registered = False
    refused = ({"fault": "flood"}, {"fault": "full", "at": 0}, {"fault": "full", "times": "often"})

    def config(self, directory: str) -> StoreConfig:
        return FaultyStore(fault="zeros", at=10**9)


class TestGatedStoreWithItsGateOpen(StoreSuite):
    is_registered = False
    gate = Gate()
    gate.open()

    def config(self, directory: str) -> StoreConfig:
        return Gated(gate=self.gate)


def test_every_registered_store_is_here(tmp_path: Path) -> None:
    suites = (TestMemory, TestDisk, TestTiered)
    assert {suite().config(str(tmp_path)).name for suite in suites} == set(registry.names("stores"))
