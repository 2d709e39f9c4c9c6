"""A disk that is slower than it is, and a budget that spills to it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

import tensorstash as ts
from tensorstash.host.arrays import Array
from tensorstash.policies import StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Slot, Store, Tier
from tensorstash.stores import Disk


@dataclass(frozen=True)
class SlowDisk:
    """A disk store that takes a number of times as long as it does.

    Args:
        times: how many.
    """

    name: ClassVar[str] = "slow_disk"
    tier: ClassVar[Tier] = "disk"
    times: float
    inner: Disk = field(default_factory=Disk)

    def open(self) -> Store:
        """Open the disk; the caller closes it."""
        return _Slowed(self.inner.open(), self.times)


class _Slowed:
    retains: ClassVar[bool] = False

    def __init__(self, inner: Store, times: float) -> None:
        self._inner = inner
        self._times = times
        self._never = threading.Event()

    def _slowly(self, call: Callable[[], Any]) -> Any:
        started = perf_counter()
        found = call()
        self._never.wait((self._times - 1) * (perf_counter() - started))
        return found

    def put(self, data: Array, /) -> Slot:
        slot: Slot = self._slowly(lambda: self._inner.put(data))
        return slot

    def get(self, slot: Slot, /) -> Array:
        data: Array = self._slowly(lambda: self._inner.get(slot))
        return data

    def delete(self, slot: Slot, /) -> None:
        self._inner.delete(slot)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class SlowBudget(ts.Budget):
    """A budget whose disk is slower than it is.

    Args:
        times: how many times.
    """

    times: float = 1.0

    def tiers(self) -> Mapping[str, HookPolicy]:
        tiers = dict(super().tiers())
        spill = StoreIn(SlowDisk(self.times))
        slow = {
            "disk_spill": spill,
            "recompute | disk_spill": ts.Recompute() | spill,
            "compress | disk_spill": ts.Compress() | spill,
        }
        return {tier: slow.get(tier, policy) for tier, policy in tiers.items()}
