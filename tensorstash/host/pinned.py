"""Page-locked host memory, which devices read and write on their own.

To lock pages takes longer than the copy that they are locked for, and unlocking may wait for the device. So large
chunks are locked once and cut into blocks of any length, which join again when they come back. The frameworks'
allocators round up to powers of two (vLLM #53042).
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import py_object, pythonapi
from warnings import warn
from weakref import finalize

import numpy as np

from tensorstash.host.arrays import Array, lender
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.free_space import FreeSpace
from tensorstash.host.pages import BLOCK, mapped_pages, physical_bytes, round_up
from tensorstash.host.pool import Loan
from tensorstash.sizes import format_bytes

_UNIT = 512  # bytes, at whose multiples blocks begin, as copies of devices like it
_LEAST_CHUNK, _MOST_CHUNK = 64 * 2**10, 256 * 2**20
_PART_OF_ALL = 8  # a chunk is an eighth of the bytes that are locked, so that the last one leaves little unused
_PART_BYTES, _MOST_THREADS = 16 * 2**20, 8  # of new memory that a thread touches, and threads that do so
_STEPS_UNUSED = 100
# Variables by which launchers tell how many processes a machine runs.
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")


def lockable_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that a process may lock: its part of half of the memory of the machine or its container."""
    if not hasattr(os, "sysconf"):  # Windows
        return 8 * 2**30
    ranks = next((environment[name] for name in _LOCAL_RANKS if environment.get(name, "").isdecimal()), "1")
    return physical_bytes() // 2 // max(int(ranks), 1)


def registered_pages(lock: Callable[[Array], Callable[[], None]], nbytes: int) -> Array:
    """Return bytes in pages that ``lock`` has locked in place, and that are unlocked with the last array in them."""
    memory = mapped_pages(nbytes)
    _touch(memory)
    try:
        finalize(lender(memory), _unlock, lock(memory), os.getpid()).atexit = False
    except OSError:
        raise
    except BaseException:  # an interrupt: they may be locked, and nobody can unlock them, so they are never unmapped
        pythonapi.Py_IncRef(py_object(memory))
        raise
    return memory


def _unlock(unlock: Callable[[], None], pid: int) -> None:
    if pid == os.getpid():  # a forked child must not touch the device of its parent
        unlock()


def _touch(memory: Array) -> None:
    """Have the system hand out pages to several threads at once: to a lock it does so one by one."""
    parts = [memory[start : start + _PART_BYTES : BLOCK] for start in range(0, memory.nbytes, _PART_BYTES)]
    if len(parts) > 1:
        with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, _MOST_THREADS)) as pool:
            list(pool.map(lambda part: part.fill(0), parts))


class PinnedMemory:
    """Arrays in page-locked memory that come back by themselves when the last view of them goes. Thread-safe.

    Args:
        locked_pages: returns so many page-locked bytes, unlocked with their last view, or raises OSError.
        budget_bytes: most bytes to lock.
    """

    def __init__(self, locked_pages: Callable[[int], Array], budget_bytes: int) -> None:
        self._locked_pages = locked_pages
        self._budget = budget_bytes
        self._chunks: list[_Chunk] = []
        self._loans: set[Loan] = set()
        self._returned: deque[Loan] = deque()
        self._return = self._returned.append  # one for all: the collector looks at each
        self._step = 0
        self._has_warned = False
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew: sessions of a child use the memory of the process, too."""
        self._lock = threading.Lock()

    @property
    def locked_bytes(self) -> int:
        """Bytes that are locked now, in use or not."""
        return sum(chunk.memory.nbytes for chunk in list(self._chunks))

    def take(self, nbytes: int) -> Array | None:
        """Return uninitialised, writable bytes; None, and one warning, where the budget or the system has no more."""
        size = max(-(-nbytes // _UNIT), 1) * _UNIT
        with self._lock:
            if self._returned:
                self._settle()
            chunk: _Chunk | None
            for chunk in self._chunks:
                if chunk.by_size and chunk.by_size[-1][0] >= size:
                    break
            else:
                chunk = self._new_chunk(size)
            if chunk is None:
                return None
            start = chunk.take(size)
            assert start is not None, "a chunk that is too small"
            chunk.last_step = self._step
            array: Array = np.frombuffer(chunk.memory[start : start + size].data, np.uint8)  # as in PagePool
            loan = Loan(array, self._return)
            loan.lent = chunk, start, size
            self._loans.add(loan)
        return array[:nbytes]

    def end_step(self) -> None:
        """Give up the chunks that many steps have not needed."""
        with self._lock:
            # An interrupt may have kept some from being noted.
            self._returned.extend([loan for loan in list(self._loans) if loan() is None])
            self._settle()
            self._step += 1
            earliest = self._step - _STEPS_UNUSED
            self._chunks = [chunk for chunk in self._chunks if chunk.last_step >= earliest or not chunk.is_idle]

    def _settle(self) -> None:
        while self._returned:
            loan = self._returned.popleft()
            if loan in self._loans:
                self._loans.discard(loan)
                chunk, start, size = loan.lent
                chunk.give(start, size)

    def _new_chunk(self, size: int) -> "_Chunk | None":
        wanted = max(size, min(max(self.locked_bytes // _PART_OF_ALL, _LEAST_CHUNK), _MOST_CHUNK))
        wanted = -(-wanted // size) * size  # the next ones most often are as long
        if self.locked_bytes + wanted > self._budget:
            self._chunks = [chunk for chunk in self._chunks if not chunk.is_idle]
        room = self._budget - self.locked_bytes
        problem: object = f"the limit is {format_bytes(self._budget)}"
        for nbytes in sorted({round_up(min(wanted, room)), round_up(size)}, reverse=True):
            if size <= nbytes <= room:
                try:
                    chunk = _Chunk(self._locked_pages(nbytes))
                except OSError as error:
                    problem = error
                else:
                    self._chunks.append(chunk)
                    return chunk
        if isinstance(problem, OSError):
            self._budget = self.locked_bytes
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"no more than {format_bytes(self.locked_bytes)} of host memory could be page-locked: {problem}. "
                f"Tensors beyond that stay on the device; raise `ulimit -l`, or set Limits(pinned=...)",
                RuntimeWarning,
                stacklevel=2,
            )
        return None


class _Chunk(FreeSpace):
    """Pages that are locked together, and those of their bytes that are free."""

    __slots__ = ("last_step", "memory")

    def __init__(self, memory: Array) -> None:
        super().__init__(memory.nbytes)
        self.memory = memory
        self.last_step = 0

    @property
    def is_idle(self) -> bool:
        return self.free_bytes == self.memory.nbytes
