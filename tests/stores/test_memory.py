"""The store in memory: exact books, also where a slot is lost or the store closes; and the one that takes the rest."""

import weakref

import pytest

from tensorstash.errors import SlotGoneError, StoreError, StoreFullError
from tensorstash.stores import Disk, Memory
from tensorstash.stores.memory import MemoryStore


def test_a_slot_that_is_lost_frees_its_bytes(payload):
    store = Memory().open()
    slot = store.put(payload(4_000))
    assert store.used_bytes == 4_000
    del slot  # as when an interrupt comes before anybody has it
    assert store.used_bytes == 0


def test_a_slot_that_goes_while_the_store_closes_goes_in_silence(payload):
    store, slots = Memory().open(), []
    data = payload(500)
    weakref.finalize(data, slots.clear)
    first = store.put(data)
    del data
    slots += [store.put(payload(500)) for _ in range(2)]
    store.close()
    assert not slots
    with pytest.raises(SlotGoneError):
        store.get(first)


def test_payloads_stay_in_memory_while_it_has_room(tmp_path, payload):
    store = Memory(budget=10_000, then=Disk(directory=str(tmp_path))).open()
    slots = [store.put(payload(4_000, seed)) for seed in range(4)]
    writable = [store.get(slot).flags.writeable for slot in slots]
    assert writable == [False, False, True, True]
    store.delete(slots[0])
    assert not store.get(store.put(payload(4_000))).flags.writeable
    store.close()


def test_full_stores_say_what_each_said(tmp_path, payload):
    store = Memory(budget=10, then=Disk(directory=str(tmp_path), budget=4096)).open()
    with pytest.raises(StoreFullError, match=r"Memory\(budget=10, .*Disk\("):
        store.put(payload(5_000))
    store.close()


def test_what_the_other_store_raises_is_raised(payload):
    class Broken:
        name, tier, retains = "broken", "memory", False

        def open(self):
            return self

        def put(self, data):
            raise StoreError("broken")

        def close(self):
            raise StoreError("cannot even close")

    store = Memory(budget=1, then=Broken()).open()
    with pytest.raises(StoreError, match=r"^broken$"):
        store.put(payload(10))
    with pytest.raises(StoreError, match="cannot even close"):
        store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.put(payload(1))


def test_a_store_whose_rest_cannot_be_opened_is_none(tmp_path):
    with pytest.raises(StoreError, match="does not exist or takes no files; pass one that you may write to"):
        Memory(budget=1, then=Disk(directory=str(tmp_path / "missing"))).open()


def test_it_is_trusted_only_if_the_other_verifies():
    class Trusting(MemoryStore):
        verifies = property(lambda self: False, lambda self, value: None)

    memory = Memory(budget=1, then=Memory())
    assert MemoryStore(memory, Memory().open()).verifies
    assert not MemoryStore(memory, Trusting(Memory())).verifies
