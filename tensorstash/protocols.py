"""The interfaces a plug-in implements: codec, store, selector, backend."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from tensorstash.errors import ConfigError
from tensorstash.host.arrays import Array
from tensorstash.spec import TensorSpec

CodecKind = Literal["array->array", "array->bytes", "bytes->bytes"]
Tier = Literal["memory", "disk"]

Demand = Literal["exact", "relative", "any"]
"""How exactly an operation's backward has to get back what it saved: to the bit, with an error that is small relative
to each element, or with one that is small beside the largest of them."""

_STRICTNESS: tuple[Demand, ...] = ("any", "relative", "exact")


def strictest(demands: Iterable[Demand]) -> Demand | None:
    """Return the demand that satisfies all; None if there is none.

    >>> strictest(["any", "relative"]), strictest(["exact", "relative"]), strictest([])
    ('relative', 'exact', None)
    """
    return max(demands, key=_STRICTNESS.index, default=None)


DEEPEST = 64
"""How deep components may lie within one another: each takes a few calls of the some thousand that Python nests."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class Codec(Protocol):
    """A reversible, or bounded-error, transform of one buffer.

    A codec is a frozen keyword-only dataclass: its configuration is the codec. It is stateless and thread-safe.
    Arrays are C-contiguous and hold carrier bits (``bfloat16`` arrives as ``uint16``); a run of bytes is a
    one-dimensional ``uint8`` array.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool]
    kind: ClassVar[CodecKind]

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the codec can encode a buffer of this spec."""
        ...

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return the spec of what :meth:`encode` returns; :func:`~tensorstash.spec.opaque_bytes` for bytes."""
        ...

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return a self-contained payload; ``data`` may be borrowed: it is neither written nor kept."""
        ...

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array again, where ``spec`` is the one given to :meth:`encode`; never writes to ``data``."""
        ...


@runtime_checkable
class SupportsErrorBound(Protocol):
    """What a codec with ``lossless = False`` offers on top."""

    def error_bound(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the largest absolute error of each element of ``data`` (float64, broadcastable to its shape)."""
        ...


Slot = Hashable
"""One payload in one store; only the store that gave it knows what it holds."""


class Store(Protocol):
    """Where payloads live. Thread-safe.

    A store that proves on its own that ``get`` returns the bytes that were put says so by ``verifies = True``; for all
    others the engine keeps a checksum of each payload. One that verifies, retains, and looks at no byte may say so by
    ``takes_pending = True``: it may then be given arrays that a device is still writing to.
    """

    retains: ClassVar[bool]
    """Whether ``put`` keeps the array itself; if so it is only ever given private arrays."""

    def put(self, data: Array, /) -> Slot:
        """Store a one-dimensional ``uint8`` array and return its slot.

        Raises:
            StoreFullError: the budget is used up, or the device is full. Nothing was stored, the store stays usable.
        """
        ...

    def get(self, slot: Slot, /) -> Array:
        """Return the bytes that were put; repeatable.

        The array is read-only if the store keeps it, and writable if it is a private copy for the caller.

        Raises:
            SlotGoneError: the slot was deleted, or the store is closed.
            CorruptDataError: the bytes are not those that were put.
        """
        ...

    def delete(self, slot: Slot, /) -> None:
        """Free the slot; idempotent, also after :meth:`close`, and never blocks.

        It is called from finalizers, which the garbage collector may run inside any other method of the same store
        on the same thread.
        """
        ...

    def close(self) -> None:
        """Give back every resource; idempotent. Also happens when the last reference to the store goes."""
        ...


@runtime_checkable
class StoreConfig(Protocol):
    """A frozen description of a store. Equal configurations share one open store within a session."""

    name: ClassVar[str]
    tier: ClassVar[Tier]
    """``"memory"`` if the store always answers at once. Calls of all others may hang, and are bounded for that."""

    def open(self) -> Store:
        """Open the store; the caller closes it."""
        ...


@runtime_checkable
class Selector(Protocol):
    """A frozen predicate over saved tensors."""

    name: ClassVar[str]

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the tensor is selected; pure."""
        ...


Undo = Callable[[], None]


class Backend(Protocol[T]):
    """The one adapter of a framework. Thread-safe, without state but its hook stack."""

    name: ClassVar[str]
    backward_writes: ClassVar[bool]
    """Whether built-in backward kernels write into the tensors that they unpack."""

    def owns(self, obj: object, /) -> bool:
        """Whether ``obj`` is a tensor or a module of this framework."""
        ...

    def hooks(
        self, pack: Callable[[T], Any], unpack: Callable[[Any], T], /, *, trusted: bool = False
    ) -> AbstractContextManager[None]:
        """Install a pair of hooks for this thread; nests, the innermost pair runs, the outer one is restored.

        Hooks run in the state in which the framework calls them; the methods of a backend are indifferent to
        gradient recording and autocast. What ``pack`` returns is opaque to the framework and is dropped as soon as
        backward is done with it.

        Args:
            pack: a function or a method, as is ``unpack``, if they are trusted.
            unpack: gives a tensor for what ``pack`` returned.
            trusted: the pair is the engine's, made from this backend's methods, so that what it does and returns
                needs no check.
        """
        ...

    def keep_reason(self, tensor: T, /) -> str | None:
        """Say why the tensor must be kept as it is, or return None if it can be stashed.

        Parameters and views of them, other leaves that require grad, and every kind of tensor that cannot be
        rebuilt exactly: sparse, unknown subclasses, without real memory, under tracing.
        """
        ...

    def nbytes(self, tensor: T, /) -> int:
        """Return numel times itemsize; raises RuntimeError where the tensor has no such number."""
        ...

    def most_bytes(self, tensor: T, /) -> int:
        """Return what :meth:`nbytes` is at most, such as the size of the whole memory, as cheaply as can be; 0 where
        the tensor has no memory of its own.

        It is asked for every saved tensor, and what is below the session's ``min_bytes`` is asked nothing else.
        """
        ...

    def spec(self, tensor: T, /) -> TensorSpec:
        """Return the spec; only asked for tensors without a :meth:`keep_reason`. Equal specs may be one object."""
        ...

    def describe(self, tensor: T, /) -> str:
        """Return a short description for messages; works on every tensor."""
        ...

    def version(self, tensor: T, /) -> int:
        """Return the in-place version, which all views of one storage share."""
        ...

    def storage(self, tensor: T, /) -> tuple[Hashable, int]:
        """Return a token of the live storage and the byte offset of the lowest element in it.

        While a token is alive it never equals the token of another storage, also not of a later one at the same
        address. It does not keep the storage alive.
        """
        ...

    def producer(self, tensor: T, /) -> str:
        """Return the name of the operation of the graph that made a tensor; empty if the graph did not make it."""
        ...

    def alias(self, tensor: T, /) -> T:
        """Return what is kept in place of the tensor: a leaf itself, else a detached alias of its memory.

        The alias shares memory and version with the tensor and is no part of any graph.
        """
        ...

    def detached(self, tensor: T, /) -> T:
        """Return a new tensor object that shares memory and version, and is no part of any graph."""
        ...

    def version_probe(self, tensor: T, /) -> T:
        """Return an object whose :meth:`version` stays that of ``tensor``, without keeping its memory.

        In-place kernels write first and count afterwards, and release the interpreter lock meanwhile. A version that
        is compared on another thread while bytes are copied can therefore come too early; one that is compared by
        the thread that needs the tensor cannot.
        """
        ...

    def to_host(self, tensor: T, spec: TensorSpec, /) -> Array:
        """Return the distinct elements, in memory order, as carrier bits shaped like ``spec.dense()``.

        The array is read-only if its memory is still the tensor's own.
        """
        ...

    def from_host(self, data: Array, spec: TensorSpec, /) -> T:
        """Return a fresh, detached tensor in private writable memory with the exact layout of ``spec``.

        Args:
            data: elements in memory order, ``spec.dense()``; memory of a writable array may be adopted.
        """
        ...

    def named_modules(self, model: object, /) -> Iterable[tuple[str, object]]:
        """Return the model and every module below it, with dotted names; the model's own is empty."""
        ...

    def wrap_forward(self, model: object, scope: Callable[[], AbstractContextManager[Any]], /) -> Undo:
        """Run every forward of ``model`` inside ``scope()`` until the returned function is called."""
        ...


def require_shallow(value: object, *, path: str) -> None:
    """Check that components, or the tables that describe them, are nested no deeper than :data:`DEEPEST`.

    Args:
        value: a component, or plain data.
        path: where it stands, for the message.

    Raises:
        ConfigError: they are.
    """
    level = {id(value): (value, 0)}
    lists = 0  # which may hold themselves
    while level and lists < 4 * DEEPEST and max(depth for _, depth in level.values()) <= DEEPEST:
        inner = [(part, depth + _nests(one)) for one, depth in level.values() for part in _parts(one)]
        level = {id(part): (part, depth) for part, depth in sorted(inner, key=_depth)}
        lists += 1
    if level:
        raise ConfigError(
            f"{path}: got components nested more than {DEEPEST} deep, expected fewer; write a chain as one list of "
            f"steps, and a route as one list of rules"
        )


def _depth(part: tuple[object, int]) -> int:
    return part[1]


def _nests(value: object) -> bool:
    return isinstance(value, Mapping) or is_dataclass(value)


def _parts(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)]
    return []
