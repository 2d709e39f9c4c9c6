"""Every store against a dictionary, over random programs, with exact budgets."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from store_kinds import STORES

from tensorstash.errors import SlotGoneError, StoreFullError
from tensorstash.host.pages import BLOCK

BUDGET = 24 * BLOCK
SIZES = st.one_of(
    st.integers(0, 3 * BLOCK),
    st.integers(0, 9).map(lambda blocks: blocks * BLOCK),
    st.just(BUDGET // 2),
    st.just(BUDGET),
)


def exact(nbytes: int) -> int:
    return nbytes


def in_blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK


def tiers(kind: str) -> list[tuple[int, Callable[[int], int]]]:
    """Return capacity and cost of a payload, in bytes, of each store that is tried in turn."""
    if kind == "memory":
        return [(BUDGET, exact)]
    if kind == "tiered":
        return [(BUDGET // 2, exact), (BUDGET // 2, in_blocks)]
    return [(BUDGET, in_blocks)]


class StoreMachine(RuleBasedStateMachine):
    """Puts succeed exactly when the model has room, and gets return exactly what the model holds."""

    kind: str
    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.store = STORES[self.kind](Path(self.directory.name), BUDGET)
        self.tiers = tiers(self.kind)
        self.used = [0 for _ in self.tiers]
        self.held: dict[object, tuple[int, bytes]] = {}
        self.closed = False

    def teardown(self) -> None:
        for slot in [*self.held]:
            self.store.delete(slot)
        self.store.close()
        self.directory.cleanup()

    @precondition(lambda self: not self.closed)
    @rule(target=slots, nbytes=SIZES, seed=st.integers(0, 99))
    def put(self, nbytes: int, seed: int) -> object:
        data = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
        expected = data.tobytes()
        for tier, (capacity, cost) in enumerate(self.tiers):
            if self.used[tier] + cost(nbytes) <= capacity:
                slot = self.store.put(data)
                self.used[tier] += cost(nbytes)
                self.held[slot] = tier, expected
                return slot
        with pytest.raises(StoreFullError):
            self.store.put(data)
        return "a slot that was never given"

    @rule(slot=slots)
    def get(self, slot: object) -> None:
        if slot in self.held:
            assert self.store.get(slot).tobytes() == self.held[slot][1]
        else:
            with pytest.raises(SlotGoneError):
                self.store.get(slot)

    def _delete(self, slot: object) -> None:
        self.store.delete(slot)
        if slot in self.held:
            tier, data = self.held.pop(slot)
            self.used[tier] -= self.tiers[tier][1](len(data))

    @rule(slot=slots)
    def delete(self, slot: object) -> None:
        self._delete(slot)

    @rule(slot=consumes(slots))
    def delete_for_good(self, slot: object) -> None:
        self._delete(slot)

    @precondition(lambda self: self.used != [0])
    @rule()
    def close(self) -> None:
        self.store.close()
        self.closed = True
        self.held.clear()

    @invariant()
    def files_keep_to_the_budget(self) -> None:
        assert getattr(self.store, "file_bytes", 0) <= BUDGET

    @invariant()
    def use_is_exact(self) -> None:
        if not self.closed and hasattr(self.store, "used_bytes"):
            assert self.store.used_bytes == self.used[0]


@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_a_dictionary_with_a_budget(kind):
    machine = type(f"{kind}_machine", (StoreMachine,), {"kind": kind})
    run(machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))
