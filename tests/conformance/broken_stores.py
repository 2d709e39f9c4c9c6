"""Stores with one fault each, and the checks that must notice."""

import itertools
import os
import threading
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ref

import numpy as np
from planted import caught_by
from planted_faults import faulty_calls, flip_the_first_bit_read

from tensorstash.stores.disk.store import Disk, DiskStore
from tensorstash.stores.memory import Memory, MemoryStore
from tensorstash.testing import StoreSuite


@dataclass(frozen=True, kw_only=True)
class Sound:
    """The description of a store without a fault."""

    name: ClassVar[str] = "sound"
    tier: ClassVar[str] = "memory"
    store: ClassVar[type] = MemoryStore
    budget: int | None = None

    def open(self) -> Any:
        return self.store(Memory(budget=self.budget))


class SoundSuite(StoreSuite):
    is_registered = False
    timeout_s = 2.0
    description: ClassVar[type] = Sound

    def config(self, directory: str) -> Any:
        return self.description()

    def with_budget(self, directory: str, budget_bytes: int) -> Any:
        return self.description(budget=budget_bytes)


class SoundDisk(StoreSuite):
    def config(self, directory: str) -> Any:
        return Disk(directory=directory)

    def on_a_device_that_alters(self, directory: str) -> Any:
        return DiskStore(Disk(directory=directory), faulty_calls(read=flip_the_first_bit_read))


def described(name: str, **members: Any) -> type:
    """Return the suite over stores whose description has other members."""
    return type(name, (SoundSuite,), {"description": type(name, (Sound,), members)})


def storing(name: str, **methods: Any) -> type:
    """Return the suite over stores with other methods."""
    return described(name, store=type(name, (MemoryStore,), methods))


caught_by("test_it_is_a_frozen_keyword_only_dataclass")(described("HasAnotherTier", tier="tape"))
caught_by("test_a_value_that_cannot_be_is_refused_with_its_path")(
    type("TakesAnyValue", (SoundSuite,), {"refused": ({"budget": "plenty"},)})
)


def makes_a_file(name: str) -> type:
    def config(self: Any, directory: str) -> Any:
        open(os.path.join(directory, "early"), "w").close()
        return SoundDisk.config(self, directory)

    return type(name, (SoundDisk,), {"config": config})


caught_by("test_its_configuration_round_trips_and_opens_nothing")(makes_a_file("CreatesFilesEarly"))
caught_by("test_no_file_survives_a_killed_process")(makes_a_file("LeavesAFileWhenItIsKilled"))

BACK = "test_what_was_put_comes_back"


def get_zeros(self: Any, slot: Any) -> Any:
    return np.zeros_like(MemoryStore.get(self, slot))


def put_by_content(self: Any, data: Any) -> Any:
    known = vars(self).setdefault("_known", {})
    content = data.tobytes()
    if content not in known:
        known[content] = MemoryStore.put(self, data)
    return known[content]


caught_by(BACK)(storing("ReturnsZeros", get=get_zeros))
caught_by(BACK)(storing("KeysByContent", put=put_by_content))
caught_by(BACK)(storing("LendsTheRecord", get=lambda self, slot: MemoryStore.get(self, slot).base))
caught_by("test_a_slot_of_nobody_is_gone")(storing("KeepsWhatIsDeleted", delete=lambda self, slot: None))
caught_by("test_what_it_does_not_retain_may_change_after_put")(storing("RetainsWithoutSaying", retains=False))


class ReusesItsBuffers(MemoryStore):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._scratch = np.zeros(6 << 20, np.uint8)

    def put(self, data: Any, /) -> Any:
        self._scratch[:] = 0
        return super().put(data)

    def get(self, slot: Any, /) -> Any:
        found = super().get(slot)
        self._scratch[: found.size] = found
        return self._scratch[: found.size]


class SharedSlots(MemoryStore):
    shared: ClassVar[dict[Any, Any]] = {}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._arrays = self.shared


class KnowsOneThread(MemoryStore):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._thread = threading.get_ident()

    def get(self, slot: Any, /) -> Any:
        found = super().get(slot)
        return found if threading.get_ident() == self._thread else found[::-1].copy()


class BlocksInDelete(MemoryStore):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._guard = threading.Lock()

    def put(self, data: Any, /) -> Any:
        with self._guard:
            return super().put(data)

    def delete(self, slot: Any, /) -> None:
        with self._guard:
            super().delete(slot)


for check, kind in {
    "test_what_it_hands_out_outlives_the_record": ReusesItsBuffers,
    "test_two_stores_of_one_description_share_nothing": SharedSlots,
    "test_threads_do_not_disturb_one_another": KnowsOneThread,
    "test_delete_may_run_inside_any_other_method": BlocksInDelete,
}.items():
    caught_by(check)(described(kind.__name__, store=kind))

caught_by("test_a_slot_of_nobody_is_gone", raises=(KeyError, TypeError))(
    storing("KnowsNoStrangers", get=lambda self, slot: self._arrays[ref(slot)])
)
caught_by("test_closing_is_final_and_idempotent")(storing("NeverCloses", close=lambda self: None))
caught_by("test_a_budget_holds_and_freed_room_is_used_again")(
    described("IgnoresItsBudget", open=lambda self: MemoryStore(Memory()))
)
caught_by("test_altered_records_are_noticed")(
    type("NoticesNothing", (SoundDisk,), {"on_a_device_that_alters": lambda self, directory: MemoryStore(Memory())})
)


@dataclass(frozen=True, kw_only=True)
class Litters(Sound):
    directory: str
    numbers: ClassVar[Any] = itertools.count()

    def open(self) -> Any:
        open(os.path.join(self.directory, str(next(self.numbers))), "w").close()
        return super().open()


caught_by("test_no_file_is_left")(
    type("LeavesAFile", (SoundDisk,), {"config": lambda self, directory: Litters(directory=directory)})
)
