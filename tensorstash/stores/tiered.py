"""Two stores as one: payloads that do not fit the first go to the second."""

from dataclasses import dataclass
from typing import ClassVar

from tensorstash.errors import ConfigError, SlotGoneError, StoreFullError
from tensorstash.host.arrays import Array
from tensorstash.protocols import Slot, Store, StoreConfig, Tier


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiered:
    """Payloads go to the first store, and to the second while the first is full.

    A payload stays where it was put. Stores nest: the second may be tiered itself.

    Args:
        first: the preferred store; give it a budget, else the second is never used.
        then: takes the others.

    Raises:
        ConfigError: one of them is not the configuration of a store.

    >>> from tensorstash.stores.disk.store import Disk
    >>> from tensorstash.stores.memory import Memory
    >>> Tiered(first=Memory(budget="1GiB"), then=Disk(directory="/nvme/scratch")).tier
    'disk'
    """

    first: StoreConfig
    then: StoreConfig
    name: ClassVar[str] = "tiered"
    tier: ClassVar[Tier] = "disk"

    def __post_init__(self) -> None:
        for field in ("first", "then"):
            if not isinstance(value := getattr(self, field), StoreConfig) or isinstance(value, type):
                raise ConfigError(f"tiered.{field}: got {value!r}, expected a store such as Memory(budget='1GiB')")

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of both stores, as far as they have any."""
        return tuple(place for store in (self.first, self.then) for place in getattr(store, "directories", ()))

    def open(self) -> "TieredStore":
        """Open both stores; the caller closes the result, which closes them.

        Raises:
            StoreError: one of them could not be opened.
        """
        first = self.first.open()
        try:
            return TieredStore(self, first, self.then.open())
        except BaseException:
            first.close()
            raise


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A slot: which of the stores has the payload, and its slot there. Equal only to itself; keeps no store alive."""

    tier: int
    slot: Slot


class TieredStore:
    """The live store of :class:`Tiered`. Thread-safe.

    Args:
        config: of the store.
        first: owned by this store.
        then: owned by this store.
    """

    retains: ClassVar[bool] = True

    def __init__(self, config: Tiered, first: Store, then: Store) -> None:
        self._config = config
        self.verifies = getattr(first, "verifies", False) and getattr(then, "verifies", False)
        self._stores = (first, then)

    def put(self, data: Array, /) -> Slot:
        """Put ``data``, which must be private, into the first store that has room, and return its slot.

        Raises:
            StoreFullError: both are full.
            StoreError: the store that has room failed.
            SlotGoneError: the store is closed.
        """
        refusals: list[str] = []
        for tier, store in enumerate(self._stores):
            try:
                return _Place(tier, store.put(data))
            except StoreFullError as error:
                refusals.append(str(error))
        raise StoreFullError("both tiers are full: " + "; ".join(refusals))

    def get(self, slot: Slot, /) -> Array:
        """Return the bytes that were put, read-only if the store that has them keeps them.

        Raises:
            SlotGoneError: the slot was deleted, or the store is closed.
            CorruptDataError: the bytes are not those that were put.
            StoreError: the store that has them failed.
        """
        if not isinstance(slot, _Place):
            raise SlotGoneError(f"{self._config!r} never gave the slot {slot!r}")
        return self._stores[slot.tier].get(slot.slot)

    def delete(self, slot: Slot, /) -> None:
        """Free the slot; idempotent, never blocks."""
        if isinstance(slot, _Place):
            self._stores[slot.tier].delete(slot.slot)

    def close(self) -> None:
        """Close both stores; idempotent."""
        first, then = self._stores
        try:
            first.close()
        finally:
            then.close()
