"""A store against its model: a dictionary from slots to bytes."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tensorstash.errors import SlotGoneError
from tensorstash.protocols import Slot, StoreConfig


def machine_over(config: StoreConfig) -> type[RuleBasedStateMachine]:
    """Return a state machine that opens a store of ``config`` and compares all it does with a dictionary."""

    class StoreMachine(RuleBasedStateMachine):
        slots: Bundle[Slot] = Bundle("slots")
        gone: Bundle[Slot] = Bundle("gone")

        def __init__(self) -> None:
            super().__init__()
            self.store = config.open()
            self.model: dict[Slot, bytes] = {}

        @rule(target=slots, content=st.binary(max_size=64), repeat=st.integers(1, 300))
        def put(self, content: bytes, repeat: int) -> Slot:
            slot = self.store.put(np.frombuffer(bytearray(content * repeat), np.uint8))
            assert slot not in self.model, "a slot was given twice"
            self.model[slot] = content * repeat
            return slot

        @rule(slot=slots)
        def get(self, slot: Slot) -> None:
            found = self.store.get(slot)
            assert found.dtype == np.uint8
            assert found.ndim == 1
            assert found.tobytes() == self.model[slot]

        @rule(slot=slots)
        def write_into_what_get_gave(self, slot: Slot) -> None:
            found = self.store.get(slot)
            if found.flags.writeable:
                found[...] = 0

        @rule(target=gone, slot=consumes(slots))
        def delete(self, slot: Slot) -> Slot:
            self.store.delete(slot)
            del self.model[slot]
            return slot

        @rule(slot=gone)
        def delete_again(self, slot: Slot) -> None:
            self.store.delete(slot)

        @rule(slot=gone)
        def get_what_is_gone(self, slot: Slot) -> None:
            try:
                self.store.get(slot)
            except SlotGoneError:
                return
            raise AssertionError("a deleted slot still gives bytes")

        @invariant()
        def every_record_is_intact(self) -> None:
            if len(self.model) <= 3:
                for slot, content in self.model.items():
                    assert self.store.get(slot).tobytes() == content

        def teardown(self) -> None:
            self.store.close()

    return StoreMachine
