"""Which of two stores has a payload."""

import numpy as np
import pytest

from tensorstash.errors import StoreError, StoreFullError
from tensorstash.stores import Disk, Memory, Tiered
from tensorstash.stores.memory import MemoryStore
from tensorstash.stores.tiered import TieredStore


def test_payloads_go_to_the_first_tier_while_it_has_room(tmp_path, payload):
    store = Tiered(first=Memory(budget=10_000), then=Disk(directory=str(tmp_path))).open()
    slots = [store.put(payload(4_000, seed)) for seed in range(4)]
    writable = [store.get(slot).flags.writeable for slot in slots]
    assert writable == [False, False, True, True]
    store.delete(slots[0])
    assert not store.get(store.put(payload(4_000))).flags.writeable
    store.close()


def test_a_full_pair_says_what_each_said(tmp_path, payload):
    store = Tiered(first=Memory(budget=10), then=Disk(directory=str(tmp_path), budget=4096)).open()
    with pytest.raises(StoreFullError, match=r"Memory\(budget=10\).*Disk\("):
        store.put(payload(5_000))
    store.close()


def test_only_a_full_tier_is_passed_over(payload):
    class Broken:
        name, tier, retains = "broken", "memory", False

        def open(self):
            return self

        def put(self, data):
            raise StoreError("broken")

        def close(self):
            raise StoreError("cannot even close")

    then = Memory()
    store = Tiered(first=Broken(), then=then).open()
    with pytest.raises(StoreError, match=r"^broken$"):
        store.put(payload(10))
    with pytest.raises(StoreError, match="cannot even close"):
        store.close()
    with pytest.raises(StoreError, match="closed"):
        store._stores[1].put(payload(10))


def test_a_store_that_cannot_be_opened_leaves_the_other_closed(tmp_path, payload):
    class Recording:
        name, tier = "recording", "memory"

        def open(self):
            self.store = Memory().open()
            return self.store

    first = Recording()
    with pytest.raises(StoreError, match="does not exist; pass one that you may write to"):
        Tiered(first=first, then=Disk(directory=str(tmp_path / "missing"))).open()
    with pytest.raises(StoreError, match="is closed"):
        first.store.put(payload(10))


def test_a_pair_is_trusted_only_if_both_verify(tmp_path):
    class TrustingStore(MemoryStore):
        verifies = False

    memory, disk = Memory(), Disk(directory=str(tmp_path))
    first, then = memory.open(), disk.open()
    trusting = TrustingStore(memory)
    for stores, verifies in (((first, then), True), ((trusting, then), False), ((first, trusting), False)):
        assert TieredStore(Tiered(first=memory, then=disk), *stores).verifies is verifies
    then.close()


def test_disk_may_come_first(tmp_path, payload):
    store = Tiered(first=Disk(directory=str(tmp_path), budget=8192), then=Memory()).open()
    slots = [store.put(payload(4_000, seed)) for seed in range(3)]
    assert [store.get(slot).flags.writeable for slot in slots] == [True, True, False]
    assert all(np.array_equal(store.get(slot), payload(4_000, seed)) for seed, slot in enumerate(slots))
    store.close()
