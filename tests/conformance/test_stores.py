from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from planted_faults import faulty_calls, flip_the_first_bit_read

from tensorstash import registry
from tensorstash.protocols import Store, StoreConfig, Tier
from tensorstash.stores.disk.store import Disk, DiskStore
from tensorstash.stores.disk.syscalls import Syscalls
from tensorstash.stores.memory import Memory
from tensorstash.testing import FaultyStore, StoreSuite

NO_SIZES = (-1, 1.5, True, "many", "1 XB", b"1")


class TestMemory(StoreSuite):
    refused = tuple({"budget": wrong} for wrong in NO_SIZES)

    def config(self, directory: str) -> StoreConfig:
        return Memory()

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Memory(budget=budget_bytes)


class TestDisk(StoreSuite):
    refused = (
        *({"budget": wrong} for wrong in NO_SIZES),
        *({"directory": wrong} for wrong in ("", b"/tmp", 3, (), ["/a"], "/a\0b")),
        {"direct": "yes"},
    )

    def config(self, directory: str) -> StoreConfig:
        return Disk(directory=directory)

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Disk(directory=directory, budget=budget_bytes)

    def on_a_device_that_alters(self, directory: str) -> Store:
        return DiskStore(Disk(directory=directory), faulty_calls(read=flip_the_first_bit_read))


class TestBufferedDisk(TestDisk):
    def config(self, directory: str) -> StoreConfig:
        return Disk(directory=directory, direct=False)


@dataclass(frozen=True, kw_only=True)
class Limited:
    """A store on disk where the system can do nothing that it need not."""

    name: ClassVar[str] = "limited"
    tier: ClassVar[Tier] = "disk"
    directory: str

    def open(self) -> Store:
        calls = Syscalls(preallocate=False, positioned=False, direct=False)
        return DiskStore(Disk(directory=self.directory), calls)


class TestLimitedDisk(StoreSuite):
    is_registered = False

    def config(self, directory: str) -> StoreConfig:
        return Limited(directory=directory)


class TestMemoryThenDisk(StoreSuite):
    refused = ({"then": Memory()}, *({"budget": 9, "then": wrong} for wrong in (3, "memory", Memory, object())))

    def config(self, directory: str) -> StoreConfig:
        return Memory(budget=20_000, then=Disk(directory=directory))

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        half = budget_bytes // 2
        return Memory(budget=half, then=Disk(directory=directory, budget=half))


class TestFaultyStoreWithoutItsFault(StoreSuite):
    is_registered = False
    refused = ({"fault": "flood"},)

    def config(self, directory: str) -> StoreConfig:
        return FaultyStore(fault="zeros", at=10**9)


def test_every_registered_store_is_here(tmp_path: Path) -> None:
    suites = (TestMemory, TestDisk)
    assert {suite().config(str(tmp_path)).name for suite in suites} == set(registry.names("stores"))
