"""The algebra of policies: a plan treats one saved tensor, and plans compose."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, runtime_checkable

from tensorstash.errors import PlanError
from tensorstash.protocols import Codec, Demand, StoreConfig
from tensorstash.spec import TensorSpec

READ_EXACTLY = "backward needs it exactly"

_TIERS = {"memory": 0, "disk": 1}


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """Makes tensors again by rules of these names, or all for None, with so many operations one after the other."""

    ops: frozenset[str] | None
    depth: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The treatment of one saved tensor; ``Plan()`` keeps it and is the neutral element of :meth:`then`.

    Args:
        codecs: run in this order when packing, in reverse when unpacking.
        store: where the payload goes; None for "stays where the last codec ran".
        reason: why nothing is done, for statistics; not part of equality.
        rebuilding: how a tensor that can be made again is, in place of all this; None for not at all.

    Raises:
        PlanError: an array codec follows one that returns bytes.

    >>> from tensorstash.codecs import Sparse, Zstd
    >>> Plan((Sparse(),)).then(Plan((Zstd(level=3),))).codecs
    (Sparse(), Zstd(level=3, shuffle=False))
    """

    codecs: tuple[Codec, ...] = ()
    store: StoreConfig | None = None
    reason: str = field(default="", compare=False)
    rebuilding: Rebuilding | None = field(default=None, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for first, second in zip(self.codecs, self.codecs[1:], strict=False):
            if first.kind.endswith("->bytes") and second.kind.startswith("array->"):
                cure = "put array codecs (such as quantization) before byte codecs (such as compression)"
                raise PlanError(f"{second!r} takes an array, but {first!r} before it returns bytes; {cure}")
        object.__setattr__(self, "_hash", hash((self.codecs, self.store, self.rebuilding)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def keeps(self) -> bool:
        """Whether the tensor is kept as it is."""
        return not self.codecs and self.store is None and self.rebuilding is None

    @property
    def rest(self) -> "Plan":
        """The treatment of a tensor that cannot be made again."""
        return self if self.rebuilding is None else replace(self, rebuilding=None)

    @property
    def is_lossless(self) -> bool:
        """Whether tensors come back equal to the bit."""
        return all(codec.lossless for codec in self.codecs)

    def within(self, demand: Demand, /) -> "Plan":
        """Return this plan, or the one without codecs if theirs is not the kind of error that backward can take.

        >>> from tensorstash.codecs import Affine, AsType
        >>> Plan((Affine(),)).within("relative").keeps, Plan((AsType(dtype="bfloat16"),)).within("relative").keeps
        (True, False)
        """
        if demand == "any" or self.is_lossless:
            return self
        lossy = [codec for codec in self.codecs if not codec.lossless]
        if demand == "relative" and all(getattr(codec, "is_relative", False) for codec in lossy):
            return self
        return Plan((), self.store, READ_EXACTLY)

    def then(self, other: "Plan", /) -> "Plan":
        """Return the plan that does this and then the other.

        Raises:
            PlanError: the other's codecs cannot follow this one's, or come behind a disk, or its tier is faster.
        """
        if other.keeps:
            return self
        if self.keeps:
            return other
        if other.rebuilding is not None:
            raise PlanError("recompute is about the tensor itself, before it is encoded or stored")
        if self.store is not None:
            if other.codecs and self.store.tier == "disk":
                raise PlanError("nothing can come after a store on disk")
            if other.store is not None and _TIERS[other.store.tier] < _TIERS[self.store.tier]:
                raise PlanError("payloads move to slower tiers only")
        return Plan(self.codecs + other.codecs, other.store or self.store, rebuilding=self.rebuilding)


@runtime_checkable
class HookPolicy(Protocol):
    """A frozen, framework-agnostic value that plans for each saved tensor.

    >>> from tensorstash.policies import Compress
    >>> isinstance(Compress(), HookPolicy), isinstance("compress", HookPolicy)
    (True, False)
    """

    name: ClassVar[str]

    def plan(self, spec: TensorSpec, /) -> Plan:
        """Return the plan of a tensor of this spec; pure, so that the answer can be remembered per spec."""

    def alternatives(self) -> tuple[Plan, ...]:
        """Return every plan the policy can give, so that a chain is checked when it is built."""
