"""One number in place of a policy: how much memory there is."""

import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from tensorstash.errors import ConfigError
from tensorstash.policies.encoding import Cast, Compress, PackMasks, Quantize
from tensorstash.policies.placement import CpuOffload, DiskSpill, Keep
from tensorstash.policies.plan import HookPolicy, Plan
from tensorstash.policies.policy import Policy, append
from tensorstash.policies.recompute import Recompute
from tensorstash.registry import did_you_mean
from tensorstash.sizes import format_bytes, parse_bytes
from tensorstash.spec import TensorSpec

LOSSLESS = (
    "keep",
    "recompute",
    "pack_masks",
    "compress",
    "cpu_offload",
    "disk_spill",
    "recompute | disk_spill",
    "compress | disk_spill",
)
"""What ``allow="lossless"`` stands for, in the order of trust."""

LOSSY = ("cast", "quantize")
"""What is used only where it is named, the least error first."""

_UNIT = re.compile(r"[a-zA-Z]")


@dataclass(frozen=True)
class Budget(Policy):
    """Training fits into so much memory, and costs as little as possible.

    The first step runs with everything as small as it can be without loss, and is measured. From the second step on,
    each kind of saved tensor has what is cheapest among keeping it, making it again, compressing, offloading and
    spilling it, such that the memory is just held. If everything fits, nothing is done.

    Args:
        size: most bytes that saved tensors and the engine hold at one time, such as ``"6GiB"``.
        total: instead: most bytes of the whole process on the CPU, or of the device's allocator, weights and
            workspaces included. With neither, the memory that is free when the first step begins.
        margin: part of the memory that is left free, from 0 to 0.5, where ``total`` or free memory is to be held.
        allow: ``"lossless"`` for all that lose nothing, or names among ``keep``, ``recompute``, ``pack_masks``,
            ``compress``, ``cpu_offload``, ``disk_spill``, ``recompute | disk_spill``, ``compress | disk_spill``; and
            ``cast`` and ``quantize``, which are lossy and used only if they are named. Also as one text:
            ``"lossless+quantize"``.
        directory: where ``disk_spill`` goes, as for :class:`DiskSpill`.
        disk: most bytes on disk; None for as much as there is room, 0 for no disk.

    Raises:
        ConfigError: a size is none or has no unit, both sizes are given, or a name is unknown.

    >>> Budget("6 GiB")
    Budget(size=6442450944, total=None, margin=0.05, allow='lossless', directory=None, disk=None)
    >>> Budget("6")
    Traceback (most recent call last):
    tensorstash.errors.ConfigError: budget.size: got '6', expected a size with a unit, such as '6GiB'
    """

    name: ClassVar[str] = "budget"
    is_whole: ClassVar[bool] = True
    size: int | str | None = None
    _: KW_ONLY
    total: int | str | None = None
    margin: float = 0.05
    allow: str | tuple[str, ...] = "lossless"
    directory: str | os.PathLike[str] | None = None
    disk: int | str | None = None

    def __post_init__(self) -> None:
        for field in ("size", "total", "disk"):
            object.__setattr__(self, field, _bytes(getattr(self, field), f"budget.{field}"))
        if self.size is not None and self.total is not None:
            raise ConfigError(
                f"budget: got size={self.size!r} and total={self.total!r}, expected one of them: size for what is "
                f"saved and held, total for all memory"
            )
        for field in ("size", "total"):
            if getattr(self, field) == 0:
                raise ConfigError(f"budget.{field}: got 0, expected more than 0 bytes")
        if isinstance(self.margin, bool) or not isinstance(self.margin, int | float) or not 0 <= self.margin <= 0.5:
            raise ConfigError(f"budget.margin: got {self.margin!r}, expected a number from 0 to 0.5")
        allow = self.allow.split("+") if isinstance(self.allow, str) else self.allow
        if not isinstance(allow, tuple | list) or not allow:
            raise ConfigError(f"budget.allow: got {self.allow!r}, expected 'lossless' or a tuple of names")
        known = ("lossless", *LOSSLESS, *LOSSY)
        for tier in allow:
            if tier not in known:
                raise ConfigError(f"budget.allow: unknown tier {tier!r}; {did_you_mean(tier, known)}")
        object.__setattr__(self, "allow", "+".join(allow))
        self.tiers()

    def extend(self, plan: Plan, spec: TensorSpec, /) -> Plan:
        tiers = self.tiers()
        floor = next((tiers[name] for name in ("disk_spill", "cpu_offload", "compress") if name in tiers), Keep())
        found = floor.plan(spec)
        return append(plan, spec, codecs=found.codecs, store=found.store, reason=found.reason)

    def choices(self) -> tuple[HookPolicy, ...]:
        return tuple(self.tiers().values())

    def tiers(self) -> Mapping[str, HookPolicy]:
        """Return what may become of a saved tensor, by name, in the order of trust; keeping it comes first."""
        allowed = str(self.allow).split("+")
        named = {*allowed, "keep", *(LOSSLESS if "lossless" in allowed else ())}
        made: dict[str, HookPolicy] = {
            "keep": Keep(),
            "pack_masks": PackMasks(),
            "compress": Compress(),
            "cpu_offload": CpuOffload(),
        }
        made["recompute"] = Recompute()
        if self.disk != 0:
            spill = DiskSpill(self.directory, budget=self.disk)
            made |= {"disk_spill": spill, "recompute | disk_spill": Recompute() | spill}
            made["compress | disk_spill"] = Compress() | spill
        made |= {"cast": Cast(), "quantize": Quantize()}
        return {tier: made[tier] for tier in (*LOSSLESS, *LOSSY) if tier in named and tier in made}

    def __str__(self) -> str:
        if self.size is not None:
            return f"{format_bytes(int(self.size))} of saved tensors"
        return "the memory that is free" if self.total is None else f"{format_bytes(int(self.total))} in total"


def _bytes(value: object, path: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and not _UNIT.search(value) and value.strip() != "0":
        raise ConfigError(f"{path}: got {value!r}, expected a size with a unit, such as '6GiB'")
    return parse_bytes(value, path=path)  # type: ignore[arg-type]  # which judges everything
