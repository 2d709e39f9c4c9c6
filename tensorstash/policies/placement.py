"""Policies that say where payloads go."""

import os
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import ClassVar

from tensorstash.errors import ConfigError
from tensorstash.policies.plan import Plan
from tensorstash.policies.policy import Policy, append, built
from tensorstash.protocols import StoreConfig
from tensorstash.spec import TensorSpec
from tensorstash.stores.disk.store import Disk
from tensorstash.stores.memory import Memory


@dataclass(frozen=True)
class Keep(Policy):
    """Tensors stay as they are; the neutral element of ``|``.

    >>> Keep().plan(TensorSpec((4,), (1,), 0, "float32", "cpu")).keeps
    True
    """

    name: ClassVar[str] = "keep"

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return plan


@dataclass(frozen=True)
class CpuOffload(Policy):
    """Payloads of tensors on an accelerator go to host memory; those that are there are left to the rest of the chain.

    To bound the memory that payloads take, put ``StoreIn(Memory(budget="8 GiB"))`` behind.

    >>> CpuOffload().plan(TensorSpec((4,), (1,), 0, "float32", "cuda:0")).store
    Memory(budget=None, then=None)
    """

    name: ClassVar[str] = "cpu_offload"

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        if spec.device == "cpu":
            return append(plan, spec, reason="already in host memory")
        return append(plan, spec, store=memory_of(plan))


@dataclass(frozen=True)
class StoreIn(Policy):
    """Payloads go to the given store, wherever the tensor is: for stores of your own, and for memory with a budget.

    Args:
        store: the description of a store; equal descriptions share one open store within a session.

    >>> StoreIn(Memory(budget="1 KiB"))
    StoreIn(store=Memory(budget=1024, then=None))
    """

    name: ClassVar[str] = "store_in"
    store: StoreConfig

    def __post_init__(self) -> None:
        if isinstance(self.store, type) or not isinstance(self.store, StoreConfig):
            raise ConfigError(f"store_in.store: got {self.store!r}, expected a store such as Memory()")
        if (tier := self.store.tier) not in ("memory", "disk"):
            raise ConfigError(f"store_in.store: {self.store!r} has the tier {tier!r}, not 'memory' or 'disk'")

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return append(plan, spec, store=self.store)


@dataclass(frozen=True)
class DiskSpill(Policy):
    """Payloads go to files in a directory; nothing is left in it, whatever ends the process.

    Args:
        directory: an existing directory on the disk to use; None for ``$TMPDIR``, else the system's own for large
            temporary files. A directory that is kept in memory saves nothing.
        budget: most bytes on disk at one time, or text such as ``"40 GiB"``; None for as much as there is room.

    >>> DiskSpill("/nvme/scratch", budget="40 GiB")
    DiskSpill(directory='/nvme/scratch', budget=42949672960)
    """

    name: ClassVar[str] = "disk_spill"
    directory: str | os.PathLike[str] | None = None
    _: KW_ONLY
    budget: int | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", self._store.directory)
        object.__setattr__(self, "budget", self._store.budget)

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        return append(plan, spec, store=self._store)

    @cached_property
    def _store(self) -> Disk:
        # Made once: a path object becomes text there, and a budget loses its unit.
        return built(self.name, lambda: Disk(directory=self.directory, budget=self.budget))  # type: ignore[arg-type]


def memory_of(plan: Plan) -> StoreConfig:
    """Return the memory store that the plan has already, budget and all, else one without a budget."""
    return plan.store if plan.store is not None and plan.store.tier == "memory" else Memory()
