"""Stores with one fault each, and the checks that must notice."""

import itertools
import os
import threading
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ref

import numpy as np
from planted import Fault
from planted_faults import faulty_calls, flip_the_first_bit_read

from tensorstash.errors import SlotGoneError
from tensorstash.stores.disk.store import Disk, DiskStore
from tensorstash.stores.memory import Memory, MemoryStore
from tensorstash.testing import StoreSuite

FAULTS: list[Fault] = []


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


def plant(*checks: str, raises: tuple[type[BaseException], ...] = (), control: type = SoundSuite):
    """Plant what a decorated store, description or suite does wrong."""

    def add(kind: type) -> type:
        if issubclass(kind, StoreSuite):
            suite: type = kind
        elif issubclass(kind, Sound):
            suite = type(kind.__name__, (SoundSuite,), {"description": kind})
        else:
            description = type("Described", (Sound,), {"store": kind})
            suite = type(kind.__name__, (SoundSuite,), {"description": description})
        FAULTS.append(Fault(suite, checks, {}, raises, control))
        return kind

    return add


@plant("test_it_is_described_by_a_frozen_dataclass")
class TakesAnyField(Sound):
    def __init__(self, **fields: Any) -> None:
        object.__setattr__(self, "budget", fields.get("budget"))


@plant("test_a_value_that_cannot_be_is_refused_with_its_path")
class TakesAnyValue(SoundSuite):
    refused = ({"budget": "plenty"},)


@plant("test_its_configuration_round_trips_and_opens_nothing", control=SoundDisk)
class CreatesFilesEarly(SoundDisk):
    def config(self, directory: str) -> Any:
        open(os.path.join(directory, "early"), "w").close()
        return super().config(directory)


@plant("test_what_was_put_comes_back", "test_it_behaves_like_a_dictionary_of_bytes", "test_it_works_in_a_session")
class ReturnsZeros(MemoryStore):
    def get(self, slot: Any, /) -> Any:
        return np.zeros_like(super().get(slot))


@plant("test_equal_payloads_have_slots_of_their_own", raises=(SlotGoneError,))
class KeysByContent(MemoryStore):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._slots: dict[bytes, Any] = {}

    def put(self, data: Any, /) -> Any:
        content = data.tobytes()
        if content not in self._slots:
            self._slots[content] = super().put(data)
        return self._slots[content]


@plant("test_what_it_hands_out_cannot_harm_the_record")
class LendsTheRecord(MemoryStore):
    def get(self, slot: Any, /) -> Any:
        return super().get(slot).base


@plant("test_what_it_does_not_retain_may_change_after_put")
class RetainsWithoutSaying(MemoryStore):
    retains: ClassVar[bool] = False


@plant("test_what_it_hands_out_outlives_the_record")
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


class _Keeps(MemoryStore):
    def delete(self, slot: Any, /) -> None:
        pass


plant("test_a_deleted_slot_is_gone_and_deleting_is_idempotent")(_Keeps)


@plant("test_a_slot_of_nobody_is_gone", raises=(KeyError, TypeError))
class KnowsNoStrangers(MemoryStore):
    def get(self, slot: Any, /) -> Any:
        return self._arrays[ref(slot)]


@plant("test_closing_is_final_and_idempotent")
class NeverCloses(MemoryStore):
    def close(self) -> None:
        pass


class _SharedSlots(MemoryStore):
    shared: ClassVar[dict[Any, Any]] = {}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._arrays = self.shared


plant("test_two_stores_of_one_description_share_nothing")(_SharedSlots)


@plant("test_threads_do_not_disturb_one_another")
class KnowsOneThread(MemoryStore):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._thread = threading.get_ident()

    def get(self, slot: Any, /) -> Any:
        found = super().get(slot)
        return found if threading.get_ident() == self._thread else found[::-1].copy()


@plant("test_delete_may_run_inside_any_other_method")
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


@plant("test_a_budget_holds_and_freed_room_is_used_again")
class IgnoresItsBudget(MemoryStore):
    def __init__(self, config: Any) -> None:
        super().__init__(Memory())


@plant("test_altered_records_are_noticed", control=SoundDisk)
class NoticesNothing(SoundDisk):
    def on_a_device_that_alters(self, directory: str) -> Any:
        return ReturnsZeros(Memory())


@plant("test_no_file_is_left", control=SoundDisk)
class LeavesAFile(SoundDisk):
    def config(self, directory: str) -> Any:
        return Litters(directory=directory)


@plant("test_no_file_survives_a_killed_process", control=SoundDisk)
class LeavesAFileWhenItIsKilled(SoundDisk):
    def config(self, directory: str) -> Any:
        open(os.path.join(directory, "payloads"), "w").close()
        return super().config(directory)


@dataclass(frozen=True, kw_only=True)
class Litters(Sound):
    directory: str
    numbers: ClassVar[Any] = itertools.count()

    def open(self) -> Any:
        open(os.path.join(self.directory, str(next(self.numbers))), "w").close()
        return super().open()
