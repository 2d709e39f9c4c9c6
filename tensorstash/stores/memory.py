"""A store in host memory, and another one for payloads that do not fit."""

import threading
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar
from weakref import ref

from tensorstash.errors import ConfigError, SlotGoneError, StoreFullError
from tensorstash.host.arrays import Array, borrowed
from tensorstash.protocols import Slot, Store, StoreConfig, Tier
from tensorstash.sizes import format_bytes, parse_budget, parse_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Payloads stay in host memory, as the arrays that were put.

    Args:
        budget: most payload bytes to hold at once, an int or text such as ``"4GiB"``; None for no limit.
        then: takes the payloads that do not fit the budget, such as ``Disk()``; None to refuse them.

    Raises:
        ConfigError: the budget is not a number of bytes, or ``then`` is not a store, or would never be used.

    >>> import numpy as np
    >>> store = Memory(budget="1KiB").open()
    >>> slot = store.put(np.arange(3, dtype=np.uint8))
    >>> store.get(slot)
    array([0, 1, 2], dtype=uint8)
    >>> store.close()
    """

    budget: int | str | None = None
    then: StoreConfig | None = None
    name: ClassVar[str] = "memory"

    def __post_init__(self) -> None:
        if self.budget is not None:
            object.__setattr__(self, "budget", parse_budget(self.budget, path="memory.budget"))
        if self.then is not None and (isinstance(self.then, type) or not isinstance(self.then, StoreConfig)):
            raise ConfigError(f"memory.then: got {self.then!r}, expected a store such as Disk()")
        if self.then is not None and self.budget is None:
            raise ConfigError(f"memory.then: got {self.then!r} without a budget, beyond which it is used")

    @property
    def tier(self) -> Tier:
        """That of ``then``, if there is one."""
        return "memory" if self.then is None else self.then.tier

    @property
    def directories(self) -> tuple[str, ...]:
        """Those of ``then``, as far as it has any."""
        return getattr(self.then, "directories", ())

    def open(self) -> "MemoryStore":
        """Open an empty store, which the caller closes; raise a StoreError where that cannot be."""
        return MemoryStore(self, None if self.then is None else self.then.open())


class _Slot:
    """Equal only to itself."""

    __slots__ = ("__weakref__",)


class MemoryStore:
    """The live store of :class:`Memory`. Thread-safe; keeps the arrays it is given and hands out read-only views.

    An array goes with its slot, also where an interrupt has kept :meth:`delete` from being called. The store owns
    ``then``, which takes the arrays that do not fit.
    """

    retains: ClassVar[bool] = True

    def __init__(self, config: Memory, then: Store | None = None) -> None:
        self._config = config
        self._then = then
        self.verifies = then is None or getattr(then, "verifies", False)
        self._budget = None if config.budget is None else parse_bytes(config.budget, path="memory.budget")
        self._arrays: dict[ref[_Slot], Array] = {}
        self._most = 0  # bytes, or more: bytes given back are counted where it matters
        self._closed = False
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes of the budget in use."""
        return sum(map(attrgetter("nbytes"), list(self._arrays.values())))

    def put(self, data: Array, /) -> Slot:
        """Keep ``data``, which must be private, or give it to the other store; return its slot."""
        slot, full = _Slot(), ""
        with self._lock:
            if self._closed:
                raise SlotGoneError(f"{self._config!r} is closed; nothing can be put into it")
            if self._budget is not None and self._most + data.nbytes > self._budget:
                self._most = self.used_bytes
                if self._most + data.nbytes > self._budget:
                    full = f"{format_bytes(self._most)} of the budget of {format_bytes(self._budget)} are in use"
            if not full:
                self._most += data.nbytes
                self._arrays[ref(slot, self._arrays.pop)] = data
                return slot
        full = f"{self._config!r}: {data.nbytes} bytes do not fit, {full}"
        if self._then is None:
            raise StoreFullError(f"{full}; raise the budget, or let a disk take the rest: then=Disk()")
        try:
            return self._then.put(data)
        except StoreFullError as error:
            raise StoreFullError(f"{full}; {error}") from error

    def get(self, slot: Slot, /) -> Array:
        """Return a read-only view of the array that was put, or the result of the other store."""
        array = self._arrays.get(ref(slot)) if isinstance(slot, _Slot) else None
        if array is None and self._then is not None:
            return self._then.get(slot)
        if array is None:
            raise SlotGoneError(f"{self._config!r} holds no such slot: it was deleted, or the store is closed")
        return borrowed(array)

    def delete(self, slot: Slot, /) -> None:
        """Free the slot, in one step, so that a finalizer may call it inside any other method on the same thread."""
        if isinstance(slot, _Slot):
            self._arrays.pop(ref(slot), None)
        if self._then is not None:
            self._then.delete(slot)

    def close(self) -> None:
        """Drop every array, and close the other store; idempotent."""
        with self._lock:
            self._closed = True
            # They go after the dictionary is empty: with them may go a slot that it still names.
            arrays = list(self._arrays.values())
            self._arrays.clear()
        del arrays
        if self._then is not None:
            self._then.close()
