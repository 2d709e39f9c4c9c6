"""Page-locked memory: used again by steps of any length, within its budget, given up, refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from tensorstash.host import pages
from tensorstash.host.arrays import Array, borrowed
from tensorstash.host.pinned import PinnedMemory, lockable_bytes, registered_pages
from tensorstash.protocols import Undo

MIB = 2**20


class Registrar:
    """Locks nothing, and knows what is locked.

    Args:
        most: bytes after which it refuses.
    """

    def __init__(self, most: int = 2**40) -> None:
        self.locked: dict[int, int] = {}
        self.calls = 0
        self._most = most

    def lock(self, memory: Array) -> Undo:
        address = memory.ctypes.data
        assert address % 4096 == 0
        assert address not in self.locked
        self.calls += 1
        if sum(self.locked.values()) + memory.nbytes > self._most:
            raise OSError(12, "Cannot allocate memory")
        self.locked[address] = memory.nbytes
        return lambda: self.locked.pop(address)

    def pages(self, nbytes: int) -> Array:
        return registered_pages(self.lock, nbytes)

    @property
    def nbytes(self) -> int:
        return sum(self.locked.values())

    def holds(self, array: Array) -> bool:
        return any(start <= array.ctypes.data < start + nbytes for start, nbytes in self.locked.items())


def taken(pinned: PinnedMemory, nbytes: int) -> Array:
    array = pinned.take(nbytes)
    assert array is not None
    return array


def test_locked_bytes_are_those_of_the_payloads_to_an_eighth() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    sizes = [3 * MIB + 5, 5 * MIB // 3, 700_001, 300_000, 1_000_001] * 4 + [70_000, 17_000, 4_100] * 200
    arrays = [taken(pinned, nbytes) for nbytes in sizes]
    assert [array.nbytes for array in arrays] == sizes
    assert all(registrar.holds(array) for array in arrays)
    assert sum(sizes) <= registrar.nbytes == pinned.locked_bytes <= 1.15 * sum(sizes)


def test_arrays_do_not_overlap_and_keep_what_is_written() -> None:
    pinned = PinnedMemory(Registrar().pages, 2**40)
    arrays = [taken(pinned, nbytes) for nbytes in [1, 63, 64, 65, 4096, 300_000, 100_000] * 30]
    for value, array in enumerate(arrays):
        array[:] = value % 251
    assert all((array == value % 251).all() for value, array in enumerate(arrays))


def test_memory_comes_back_with_the_last_view_and_is_used_again(no_gc: None) -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    array = taken(pinned, MIB)
    address = array.ctypes.data
    view = borrowed(array.view(np.float32).reshape(512, 512))[3:]
    del array
    assert taken(pinned, MIB).ctypes.data != address
    del view
    again = {taken(pinned, MIB).ctypes.data for _ in range(5)}
    assert len(again) == 1
    assert registrar.calls == 2


def test_chunks_that_many_steps_did_not_need_are_given_up() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    kept = taken(pinned, MIB)
    taken(pinned, 3 * MIB)
    for _ in range(100):
        pinned.end_step()
        assert registrar.nbytes == 4 * MIB
    pinned.end_step()
    assert registrar.nbytes == MIB
    assert registrar.holds(kept)


def test_the_budget_holds_idle_chunks_make_room_and_a_warning_says_so_once() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 4 * MIB)
    first = [taken(pinned, MIB) for _ in range(4)]
    with pytest.warns(RuntimeWarning, match=r"no more than 4 MiB .*: the limit is 4 MiB.*stay on the device"):
        assert pinned.take(MIB) is None
    assert pinned.take(MIB) is None
    assert registrar.nbytes == 4 * MIB
    del first[1:]
    assert registrar.holds(taken(pinned, 2 * MIB))
    assert registrar.nbytes == 3 * MIB


def test_a_system_that_refuses_is_not_asked_again() -> None:
    registrar = Registrar(most=MIB)
    pinned = PinnedMemory(registrar.pages, 2**40)
    first = taken(pinned, MIB)
    with pytest.warns(RuntimeWarning, match=r"no more than 1 MiB .*page-locked: .*Cannot allocate memory.*ulimit -l"):
        assert pinned.take(MIB) is None
    assert pinned.take(MIB) is None
    assert registrar.calls == 2
    del first
    assert registrar.holds(taken(pinned, MIB))


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system does not tell how much memory it has")
@pytest.mark.parametrize(("limit", "nbytes"), [("8000000", 8_000_000), ("max", None), (None, None)])
def test_the_ranks_of_a_machine_lock_half_of_its_memory_or_of_their_containers_together(
    limit: str | None, nbytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(pages, "_CONTAINER_LIMITS", (str(file),))
    alone, ranks = lockable_bytes({}), [lockable_bytes({"LOCAL_WORLD_SIZE": "8"}) for _ in range(8)]
    assert alone == (nbytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2
    assert alone - 8 < sum(ranks) <= alone


def test_pages_are_unlocked_with_the_last_array_and_the_pool() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    array = taken(pinned, MIB)
    small = taken(pinned, 100)
    taken(pinned, 2 * MIB)
    del pinned
    assert registrar.holds(array)
    del array, small
    assert not registrar.locked
