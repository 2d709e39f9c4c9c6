from tensorstash.buffers import Array
from tensorstash.protocols import Store, StoreConfig
from tensorstash.stores.disk import Disk, DiskStore
from tensorstash.stores.memory import Memory
from tensorstash.stores.syscalls import Syscalls
from tensorstash.stores.tiered import Tiered
from tensorstash.testing import StoreSuite, Watched


class AlteringCalls(Syscalls):
    """Flips one bit in the first byte of everything read."""

    def read(self, fd: int, out: Array, offset: int) -> int:
        count = super().read(fd, out, offset)
        out[:1] ^= 1
        return count


class TestMemory(StoreSuite):
    def config(self, directory: str) -> StoreConfig:
        return Memory()

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Memory(budget=budget_bytes)


class TestDisk(StoreSuite):
    def config(self, directory: str) -> StoreConfig:
        return Disk(directory=directory)

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        return Disk(directory=directory, budget=budget_bytes)

    def on_a_device_that_alters(self, directory: str) -> Store:
        return DiskStore(Disk(directory=directory), AlteringCalls())


class TestBufferedDisk(TestDisk):
    def config(self, directory: str) -> StoreConfig:
        return Disk(directory=directory, direct=False)


class TestTiered(StoreSuite):
    def config(self, directory: str) -> StoreConfig:
        return Tiered(first=Memory(budget=20_000), then=Disk(directory=directory))

    def with_budget(self, directory: str, budget_bytes: int) -> StoreConfig:
        half = budget_bytes // 2
        return Tiered(first=Memory(budget=half), then=Disk(directory=directory, budget=half))


class TestWatched(StoreSuite):
    """The kit's own wrapper is a store like any other."""

    is_registered = False
    watched = Watched()

    def config(self, directory: str) -> StoreConfig:
        return self.watched
