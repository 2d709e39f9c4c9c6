"""A store against its model: a dictionary from slots to bytes."""

import numpy as np
import pytest
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

        @rule(target=slots, content=st.just(b"same") | st.binary(max_size=64), repeat=st.integers(1, 300))
        def put(self, content: bytes, repeat: int) -> Slot:
            slot = self.store.put(np.frombuffer(bytearray(content * repeat), np.uint8))
            assert slot not in self.model, "a slot was given twice"
            self.model[slot] = content * repeat
            return slot

        @rule(slot=slots)
        def get_and_write_into_it(self, slot: Slot) -> None:
            found = self.store.get(slot)
            assert (str(found.dtype), found.ndim, found.tobytes()) == ("uint8", 1, self.model[slot])
            if found.flags.writeable:
                found[...] = 0

        @rule(target=gone, slot=consumes(slots))
        def delete(self, slot: Slot) -> Slot:
            self.store.delete(slot)
            del self.model[slot]
            return slot

        @rule(slot=gone)
        def ask_for_what_is_gone(self, slot: Slot) -> None:
            self.store.delete(slot)
            with pytest.raises(SlotGoneError):
                self.store.get(slot)

        @invariant()
        def every_record_is_intact(self) -> None:
            if len(self.model) <= 3:
                for slot, content in self.model.items():
                    assert self.store.get(slot).tobytes() == content

        def teardown(self) -> None:
            self.store.close()

    return StoreMachine
