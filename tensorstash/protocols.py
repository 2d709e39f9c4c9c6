"""The interfaces a plug-in implements: codec, store, selector; a backend's is in :mod:`tensorstash.abilities`."""

from collections.abc import Callable, Hashable, Iterable
from typing import ClassVar, Literal, Protocol, runtime_checkable

from tensorstash.spec import Array, TensorSpec

CodecKind = Literal["array->array", "array->bytes", "bytes->bytes"]
Tier = Literal["memory", "disk"]

Demand = Literal["exact", "relative", "any"]
"""The accuracy that an operation's backward needs of a saved tensor: to the bit, with an error that is small relative
to each element, or with one that is small beside the largest of them."""

_STRICTNESS: tuple[Demand, ...] = ("any", "relative", "exact")


def strictest(demands: Iterable[Demand]) -> Demand | None:
    """Return the demand that satisfies all; None if there is none."""
    return max(demands, key=_STRICTNESS.index, default=None)


@runtime_checkable
class Codec(Protocol):
    """A reversible, or bounded-error, transform of one buffer.

    A codec is a frozen keyword-only dataclass, stateless and thread-safe. Arrays are C-contiguous and hold carrier bits
    (``bfloat16`` arrives as ``uint16``); a run of bytes is a one-dimensional ``uint8`` array. Data or a payload that
    does not match the spec, or is not accepted, is a CodecError.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool]
    kind: ClassVar[CodecKind]

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the codec can encode a buffer of this spec."""

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return the spec of the result of :meth:`encode`; :func:`~tensorstash.spec.opaque_bytes` for bytes."""

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return a self-contained payload; ``data`` may be borrowed: it is neither written nor kept."""

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array again, where ``spec`` is the one given to :meth:`encode`; never writes to ``data``."""


@runtime_checkable
class SupportsErrorBound(Protocol):
    """The part of a codec with ``lossless = False``: its error bound."""

    def error_bound(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the largest absolute error of each element of ``data`` (float64, broadcastable to its shape)."""


Slot = Hashable
"""One payload in one store; only the store that gave it knows its parts."""


class Store(Protocol):
    """A place of payloads. Thread-safe.

    The engine keeps a checksum of each payload, unless the store says by ``verifies = True`` that it does so itself.
    """

    retains: ClassVar[bool]
    """Whether ``put`` keeps the array itself; if so it is only ever given private arrays."""

    def put(self, data: Array, /) -> Slot:
        """Store a one-dimensional ``uint8`` array and return its slot.

        Raises:
            StoreFullError: the budget is used up, or the device is full. Nothing was stored, the store stays usable.
        """

    def get(self, slot: Slot, /) -> Array:
        """Return the bytes that were put; repeatable.

        The array is read-only if the store keeps it, and writable if it is a private copy for the caller.

        Raises:
            SlotGoneError: the slot was deleted, or the store is closed.
            CorruptDataError: the bytes are not those that were put.
        """

    def delete(self, slot: Slot, /) -> None:
        """Free the slot; idempotent, also after :meth:`close`, and never blocks.

        Finalizers call it, which the garbage collector may run inside any other method of the store on the same thread.
        """

    def close(self) -> None:
        """Give back every resource; idempotent. Also happens when the last reference to the store goes."""


@runtime_checkable
class StoreConfig(Protocol):
    """A frozen description of a store. Equal configurations share one open store within a session."""

    name: ClassVar[str]

    @property
    def tier(self) -> Tier:
        """``"memory"`` if the store always answers at once. Calls of all others may hang, and are bounded for that."""

    def open(self) -> Store:
        """Open the store; the caller closes it."""


@runtime_checkable
class Selector(Protocol):
    """A frozen predicate over saved tensors."""

    name: ClassVar[str]

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the tensor is selected; pure."""


Undo = Callable[[], None]
