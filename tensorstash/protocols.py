"""The interfaces a plug-in implements: codec, store, selector, backend."""

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from tensorstash.buffers import Array
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


class PendingArray(Protocol):
    """A copy to the host that has been started."""

    def wait(self) -> Array:
        """Return the elements in memory order; read-only if the memory is still the tensor's own."""
        ...


Undo = Callable[[], None]


@runtime_checkable
class SupportsHolders(Protocol[T_contra]):
    """A backend whose framework tells how many objects hold a memory.

    Under one that does not, the bytes of what is stashed are copied before ``pack`` returns.
    """

    def holders(self, tensor: T_contra, /) -> int:
        """Return how many objects hold the tensor's memory: itself, aliases and views of it, and whatever else does.

        Whoever can read or write it without holding it (other libraries, other processes) makes the tensors of that
        memory ones with a :meth:`Backend.keep_reason`.
        """
        ...

    def is_there(self, tensor: T_contra, spec: TensorSpec, /) -> bool:
        """Whether the tensor has its memory now; whoever holds it may have freed it for a while."""
        ...

    def keeps_graph(self) -> bool:
        """Whether the saved tensor that is asked for on this thread may be asked for again."""
        ...


@runtime_checkable
class SupportsDemand(Protocol):
    """A backend whose framework tells inside ``pack`` which operation saves."""

    def demand(self) -> Demand:
        """Return how exactly the operation that saves the tensor being packed has to get it back."""
        ...


class Readers(Protocol[T_contra]):
    """Finds in the graph, while one thread records it, which operation has saved what.

    It keeps nothing of the graph alive.
    """

    def visit(self, tensor: T_contra, /) -> Iterable[tuple[Any, Demand]]:
        """Return handles on the way to a tensor that is being packed, with what their readers need.

        Each is returned once; those that ``tensor`` itself was computed from, perhaps more often.
        """
        ...


@runtime_checkable
class SupportsReaders(Protocol[T_contra]):
    """A backend whose framework shows, after ``pack``, which operation has saved what ``pack`` returned."""

    def readers(self, is_ours: Callable[[object], bool], /) -> Readers[T_contra]:
        """Return what finds the readers of handles in the graph that this thread records from now on.

        Args:
            is_ours: whether an object is a handle whose reader is wanted.
        """
        ...

    def running_demand(self, handle: object, /) -> Demand | None:
        """Return what the operation whose backward runs on this thread needs of a handle; None if none runs."""
        ...


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

    def witness(self, tensor: T, /) -> T:
        """Return an object whose :meth:`version` stays that of ``tensor``, without keeping its memory.

        In-place kernels write first and count afterwards, and release the interpreter lock meanwhile. A version that
        is compared on another thread while bytes are copied can therefore come too early; one that is compared by
        the thread that needs the tensor cannot.
        """
        ...

    def to_host(self, tensor: T, spec: TensorSpec, /) -> PendingArray:
        """Start copying the distinct elements, in memory order, as carrier bits shaped like ``spec.dense()``."""
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


@runtime_checkable
class SupportsSharedMemory(Protocol[T_co]):
    """A backend that puts tensors of the host side by side into one memory, as views of one tensor are."""

    def place(self, data: Array, spec: TensorSpec, memory: Array, start: int, /) -> T_co:
        """Return what :meth:`Backend.from_host` does, but in ``memory`` from a byte on.

        The tensor keeps the memory alive, and has an in-place version of its own.
        """
        ...


class Kernel(Protocol[T]):
    """A codec that runs where the tensor is, for tensors of one spec. Thread-safe, stateless.

    It means what the codec means, within the codec's bound; its payloads are its own and are only ever decoded by an
    equal kernel. Where a device has streams it launches on the current one, without waiting for the device, and it is
    indifferent to gradient recording, autocast and the user's random state.
    """

    def encode(self, dense: T, /) -> T:
        """Return a payload in fresh memory, contiguous, of the shape and dtype of the codec's ``encoded_spec``.

        Args:
            dense: the distinct elements in memory order; borrowed: neither written to nor kept.
        """
        ...

    def decode(self, payload: T, /) -> T:
        """Return the distinct elements again in fresh memory, contiguous; never writes to ``payload``."""
        ...


@runtime_checkable
class SupportsKernels(Protocol[T]):
    """A backend, some of whose codecs run where the tensor is."""

    def kernel(self, codec: Codec, spec: TensorSpec, /) -> Kernel[T] | None:
        """Return what runs ``codec`` on the device of ``spec``, or None if only the codec itself can.

        Asked once per codec and spec.

        Args:
            codec: it accepts ``spec``.
            spec: of the dense elements, or of the payload of the kernel before.
        """
        ...

    def dense(self, tensor: T, spec: TensorSpec, /) -> T:
        """Return the distinct elements in memory order, contiguous, on the tensor's device, without lazy flags.

        Args:
            tensor: a saved tensor, whose memory the result may share.
            spec: its spec.
        """
        ...

    def restored(self, dense: T, spec: TensorSpec, /, *, adopt: bool) -> T:
        """Return a detached tensor in private memory with the exact layout of ``spec``, made on its device.

        Args:
            dense: the distinct elements in memory order, contiguous, of any shape.
            spec: the layout.
            adopt: whether the memory of ``dense`` may be used for the result.
        """
        ...

    def payload(self, data: Array, spec: TensorSpec, /) -> T:
        """Return a contiguous tensor of ``spec`` for :meth:`Kernel.decode`; it may share the memory of ``data``."""
        ...


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether the device has come to it; never waits."""
        ...

    def synchronize(self) -> None:
        """Make the calling thread wait until the device has come to it; other threads run meanwhile."""
        ...


class Stream(Protocol):
    """A queue of work of one device; equal to itself alone, and to other objects for the same queue. Thread-safe."""

    def record(self) -> Event:
        """Return the point after all work that was submitted so far."""
        ...

    def wait(self, event: Any, /) -> None:
        """Let what is submitted from now on begin only after ``event``, of any stream of the same framework."""
        ...


@runtime_checkable
class SupportsStreams(SupportsKernels[T], Protocol[T]):
    """A backend with devices that work behind the program, so that copies can run beside the computation.

    It only says how things are done; in which order is the engine's affair. A tensor's memory belongs to the stream
    that was current when it was allocated: once freed, it may be handed out again at once to work of that stream.
    """

    def current_stream(self, device: str, /) -> Stream | None:
        """Return the stream that this thread submits the device's work to, or None if that device has no streams.

        Raises:
            BackendError: the work is not being done but recorded, to be replayed later (CUDA graphs).
        """
        ...

    def new_stream(self, device: str, /) -> Stream:
        """Return a stream of its own for copies of that device."""
        ...

    def empty(self, spec: TensorSpec, /) -> T:
        """Return an uninitialised, contiguous, detached tensor for work of the device's current stream."""
        ...

    def copy_out(self, source: T, target: Array, stream: Any, /) -> None:
        """Submit to ``stream`` a copy of a contiguous tensor into host memory.

        Neither is kept alive for it. It may wait for the copy where ``target`` is not page-locked.

        Args:
            source: of any type.
            target: as many writable bytes, one-dimensional ``uint8``.
            stream: a :class:`Stream` of the tensor's device, as this backend gives them.
        """
        ...

    def copy_in(self, source: Array, target: T, stream: Any, /) -> None:
        """Submit to ``stream`` a copy of host memory into a contiguous tensor; as :meth:`copy_out`, the other way."""
        ...

    def use_in(self, tensor: T, stream: Any, /) -> None:
        """Let the tensor's memory, once it is freed, wait for what ``stream`` has been given until then.

        Does nothing for the stream that the memory belongs to.
        """
        ...

    def lock_pages(self, memory: Array, /) -> Undo:
        """Page-lock host memory, so that devices copy it on their own; return what unlocks it again.

        Args:
            memory: whole pages, one-dimensional ``uint8``.

        Raises:
            OSError: the system or the device refuses.
        """
        ...
