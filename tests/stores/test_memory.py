"""The store in memory: exact books, also where a slot is lost or the store closes."""

import weakref

import numpy as np
import pytest

from tensorstash.errors import SlotGoneError
from tensorstash.stores import Memory


def test_a_slot_that_is_lost_frees_its_bytes(payload):
    store = Memory().open()
    slot = store.put(payload(4_000))
    assert store.used_bytes == 4_000
    del slot  # as when an interrupt comes before anybody has it
    assert store.used_bytes == 0


def test_it_can_be_filled_to_the_last_byte_again():
    store = Memory(budget=10).open()
    store.delete(store.put(np.zeros(6, np.uint8)))
    slot = store.put(np.zeros(10, np.uint8))
    assert store.get(slot).size == store.used_bytes == 10


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
