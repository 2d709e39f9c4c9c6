"""Page-locked memory: exact, used again, within its budget, given up, and replaced where the system refuses."""

import gc

import numpy as np
import pytest

from tensorstash.host.arrays import Array, borrowed
from tensorstash.host.pinned import PinnedMemory, registered_pages
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


def test_locked_bytes_are_those_of_the_payloads_to_a_twentieth() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    sizes = [3 * MIB + 5, 5 * MIB // 3, 700_001, 300_000, 1_000_001] * 4 + [70_000, 17_000, 4_100] * 200
    arrays = [pinned.take(nbytes) for nbytes in sizes]
    assert [array.nbytes for array in arrays] == sizes
    assert all(registrar.holds(array) for array in arrays)
    assert sum(sizes) <= registrar.nbytes == pinned.locked_bytes <= 1.05 * sum(sizes)


@pytest.mark.parametrize("size", [64, 5_000, 171_000, 174_080, 255_000])
@pytest.mark.parametrize("count", [40, 300])
def test_many_arrays_of_one_size_leave_little_of_their_pages(size: int, count: int) -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    arrays = [pinned.take(size) for _ in range(count)]
    assert registrar.nbytes <= 1.05 * size * count + 64 * 2**10
    assert len({array.ctypes.data for array in arrays}) == count


def test_arrays_do_not_overlap_and_keep_what_is_written() -> None:
    pinned = PinnedMemory(Registrar().pages, 2**40)
    arrays = [pinned.take(nbytes) for nbytes in [1, 63, 64, 65, 4096, 300_000, 100_000] * 30]
    for value, array in enumerate(arrays):
        array[:] = value % 251
    assert all((array == value % 251).all() for value, array in enumerate(arrays))


def test_memory_comes_back_with_the_last_view_and_is_used_again() -> None:
    gc.disable()
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    array = pinned.take(MIB)
    address = array.ctypes.data
    view = borrowed(array.view(np.float32).reshape(512, 512))[3:]
    del array
    assert pinned.take(MIB).ctypes.data != address
    del view
    again = {pinned.take(MIB).ctypes.data for _ in range(5)}
    assert len(again) == 1
    assert registrar.calls == 2
    gc.enable()


def test_a_training_loop_locks_its_pages_once() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    for _ in range(5):
        arrays = [pinned.take(nbytes) for nbytes in [MIB, 2 * MIB, MIB, 5000, 5000]]
        pinned.end_step()
        del arrays
    assert registrar.calls == 4


def test_pages_that_two_steps_did_not_need_are_given_up() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    kept = pinned.take(MIB)
    pinned.take(3 * MIB)
    for _ in range(2):
        pinned.end_step()
        assert registrar.nbytes == 4 * MIB
    pinned.end_step()
    assert registrar.nbytes == MIB
    assert registrar.holds(kept)


def test_the_budget_holds_and_idle_pages_make_room() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 4 * MIB)
    first = [pinned.take(MIB) for _ in range(4)]
    assert pinned.take_locked(MIB) is None
    beyond = pinned.take(MIB)
    assert beyond.nbytes == MIB
    assert not registrar.holds(beyond)
    del first[1:]
    larger = pinned.take(2 * MIB)
    assert registrar.holds(larger)
    assert registrar.nbytes == 3 * MIB


def test_a_system_that_refuses_ends_in_ordinary_memory_and_one_warning() -> None:
    registrar = Registrar(most=MIB)
    pinned = PinnedMemory(registrar.pages, 2**40)
    first = pinned.take(MIB)
    with pytest.warns(RuntimeWarning, match=r"no more than 1 MiB .*page-locked: .*Cannot allocate memory.*ulimit -l"):
        second = pinned.take(MIB)
    third = pinned.take(MIB)
    assert registrar.holds(first)
    assert not registrar.holds(second)
    assert third.nbytes == MIB
    assert registrar.calls == 2  # it is not asked for every tensor from then on
    del first
    assert registrar.holds(pinned.take(MIB))


def test_pages_are_unlocked_with_the_last_array_and_the_pool() -> None:
    registrar = Registrar()
    pinned = PinnedMemory(registrar.pages, 2**40)
    array = pinned.take(MIB)
    small = pinned.take(100)
    pinned.take(2 * MIB)
    del pinned
    assert registrar.holds(array)
    del array, small
    assert not registrar.locked
