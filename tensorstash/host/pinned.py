"""Page-locked host memory, which devices read and write on their own, with exact accounting.

The allocators of the frameworks round every request up to a power of two, which costs up to twice the memory (vLLM
#53042), and locking pages takes longer than the copy they are locked for. So pages of our own are locked once, used
again step after step, and given up when two steps in a row have not needed them.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from warnings import warn

import numpy as np

from tensorstash.host.arrays import Array, aligned_empty, lender
from tensorstash.host.forks import renew_after_fork
from tensorstash.host.pages import BLOCK, mapped_pages, never_unmap
from tensorstash.sizes import format_bytes
from tensorstash.spec import ALIGNMENT

_SHARED_BELOW = 256 * 2**10
_FEWEST_SHARED, _MOST_SHARED = 64 * 2**10, 2 * 2**20
_SHARE_OF_ALL = 32
"""Pages to share are a thirty-second of what is locked already, so that what is left of the last ones is little."""
_STEPS_UNUSED = 2


def registered_pages(lock: Callable[[Array], Callable[[], None]], nbytes: int) -> Array:
    """Return pages that are locked in place, and unlocked when the last array in them goes.

    Args:
        lock: page-locks whole pages and returns what unlocks them; raises OSError where it cannot.
        nbytes: how many.

    Raises:
        OSError: they cannot be locked.
    """
    memory = mapped_pages(nbytes)
    try:
        weakref.finalize(lender(memory), lock(memory)).atexit = False
    except OSError:
        raise
    except BaseException:  # an interrupt: they may be locked, and nobody can unlock them
        never_unmap(memory)
        raise
    return memory


class PinnedMemory:
    """Arrays in page-locked memory that come back by themselves when the last view of them goes. Thread-safe.

    Args:
        locked_pages: returns so many page-locked bytes, unlocked when the last view of them goes; raises OSError where
            there are none.
        budget_bytes: most bytes to lock.

    >>> from functools import partial
    >>> locked = []
    >>> def lock(memory):
    ...     locked.append(memory.nbytes)
    ...     return locked.clear
    >>> pinned = PinnedMemory(partial(registered_pages, lock), 2**20)
    >>> array = pinned.take(300_000)
    >>> array.nbytes, locked
    (300000, [303104])
    """

    def __init__(self, locked_pages: Callable[[int], Array], budget_bytes: int) -> None:
        self._locked_pages = locked_pages
        self._budget = budget_bytes
        self._slabs: set[_Slab] = set()
        self._most_locked = 0  # bytes, or more: what was given up is counted where it matters
        self._shared: list[_Slab] = []
        self._idle: dict[int, list[_Block]] = {}
        self._loans: set[_Loan] = set()
        self._returned: deque[_Loan] = deque()
        self._return = self._returned.append  # one for all: the collector looks at each
        self._step = 0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()

    @property
    def locked_bytes(self) -> int:
        """Bytes that are locked now, in use or not."""
        return sum(map(_nbytes, list(self._slabs)))

    def take(self, nbytes: int) -> Array:
        """Return uninitialised, writable bytes that are the caller's until the last view of them goes.

        They are page-locked, unless the budget is used up or the system refuses: then the device has to wait for
        every copy, and a warning says so once.
        """
        pages = self.take_locked(nbytes)
        return aligned_empty(nbytes) if pages is None else pages

    def take_locked(self, nbytes: int) -> Array | None:
        """Return page-locked bytes as :meth:`take` does, or None where there are no more."""
        unit = ALIGNMENT if nbytes < _SHARED_BELOW else BLOCK
        size = max(-(-nbytes // unit), 1) * unit
        with self._lock:
            if self._returned:
                self._settle()
            idle = self._idle.get(size)
            block = idle.pop() if idle else self._carve(size)
            if block is None:
                return None
            block.slab.last_step = self._step
            # A view of an array refers to the array itself only if that one's memory belongs to something else: hence
            # the detour over a memoryview, without which the loan could end while a view is alive.
            lent: Array = np.frombuffer(block.memory.data, np.uint8)
            loan = _Loan(lent, self._return)
            loan.block = block
            self._loans.add(loan)
        return lent[:nbytes]

    def end_step(self) -> None:
        """Give up the pages that the last steps have not needed."""
        with self._lock:
            # Found out here, whatever an interrupt has kept from being noted.
            self._returned.extend([loan for loan in list(self._loans) if loan() is None])
            self._settle()
            self._step += 1
            self._drop([slab for slab in self._slabs if slab.last_step < self._step - _STEPS_UNUSED])

    def _settle(self) -> None:
        while self._returned:
            loan = self._returned.popleft()
            if loan in self._loans:
                self._loans.discard(loan)
                self._idle.setdefault(loan.block.memory.nbytes, []).append(loan.block)

    def _carve(self, size: int) -> "_Block | None":
        if size >= _SHARED_BELOW:
            slab = self._new_slab(size)
        else:
            slab = min((slab for slab in self._shared if slab.room >= size), key=attrgetter("room"), default=None)
            if slab is None and (slab := self._new_slab(self._pages_to_share(size))) is not None:
                self._shared.append(slab)
        if slab is None:
            return None
        slab.taken += size
        if slab.room < ALIGNMENT and slab in self._shared:
            self._shared.remove(slab)
        return _Block(slab, slab.memory[slab.taken - size : slab.taken])

    def _pages_to_share(self, size: int) -> int:
        """Return bytes for blocks of one size, which most of the next ones have; at most a power of two."""
        wanted = min(max(self._most_locked // _SHARE_OF_ALL, size, _FEWEST_SHARED), _MOST_SHARED)
        count = max((1 << wanted.bit_length() - 1) // size, 1)
        return -(-count * size // BLOCK) * BLOCK

    def _new_slab(self, nbytes: int) -> "_Slab | None":
        if self._most_locked + nbytes > self._budget:
            self._drop(list(self._slabs))
            self._most_locked = self.locked_bytes
            if self._most_locked + nbytes > self._budget:
                return None
        try:
            memory = self._locked_pages(nbytes)
        except OSError as error:
            self._most_locked = self._budget = self.locked_bytes
            warn(
                f"no more than {format_bytes(self._budget)} of host memory could be page-locked: {error}. The device "
                f"waits for copies to the rest, which is slow; raise `ulimit -l`, or set Limits(pinned=...)",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        slab = _Slab(memory)
        self._most_locked += nbytes
        self._slabs.add(slab)
        return slab

    def _drop(self, slabs: list["_Slab"]) -> None:
        """Give up those of the slabs that nobody uses."""
        unused = set(slabs).difference([loan.block.slab for loan in self._loans])
        if unused:
            self._idle = {
                size: kept
                for size, blocks in self._idle.items()
                if (kept := [block for block in blocks if block.slab not in unused])
            }
            self._slabs -= unused
            self._most_locked = self.locked_bytes
            self._shared = [slab for slab in self._shared if slab not in unused]


class _Slab:
    """Pages that are locked together, and unlocked when the last array in them goes."""

    __slots__ = ("last_step", "memory", "nbytes", "taken")

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self.nbytes = memory.nbytes
        self.taken = 0
        self.last_step = 0

    @property
    def room(self) -> int:
        """Bytes that were never taken."""
        return self.nbytes - self.taken


_nbytes = attrgetter("nbytes")


class _Block:
    """Some bytes of a slab."""

    __slots__ = ("memory", "slab")

    def __init__(self, slab: _Slab, memory: Array) -> None:
        self.slab = slab
        self.memory = memory


class _Loan(weakref.ref[Array]):
    """A block that is in use, as long as an array of it lives. Equal only to itself."""

    __slots__ = ("block",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    block: _Block
