"""What a backend may offer on top: the abilities of a framework that the engine asks for, each by its protocol."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec, Demand
from tensorstash.spec import TensorSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


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
class SupportsMemoryUse(Protocol):
    """A backend whose framework tells how much memory of a device is in use."""

    def memory_use(self, device: str, /) -> tuple[int, int]:
        """Return the bytes that tensors take on a device now, and those that are free; raises BackendError where it
        is not told of that device."""
        ...


@runtime_checkable
class SupportsRecording(Protocol):
    """A backend whose framework can be told to record no gradients, as for evaluation."""

    def is_recording(self) -> bool:
        """Whether this thread records what it computes, so that autograd saves tensors."""
        ...


@runtime_checkable
class SupportsCompiledGraphs(Protocol):
    """A backend whose framework compiles functions to graphs whose backward asks for all that they saved at once."""

    def compiled_graph(self) -> int | None:
        """Return a number of the compiled graph whose backward runs on this thread; None if none does."""
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


@runtime_checkable
class SupportsOrder(Protocol):
    """A backend whose framework shows the order in which a backward will ask, while it runs."""

    def upcoming(self, is_ours: Callable[[object], bool], /) -> Iterable[list[Any]]:
        """Return the handles that the backward on this thread will ask for, operation by operation, in order.

        The running operation is the first. Only a hint: what is not known is left out.

        Args:
            is_ours: whether an object is a handle.
        """
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

    def why_copies_wait(self, device: str, /) -> str | None:
        """Say why copies of a device make the program wait; None if they run beside it."""
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

    def locked_pages(self, nbytes: int, /) -> Array:
        """Return page-locked host memory, which devices copy on their own; unlocked when the last view of it goes.

        Args:
            nbytes: how many; whole pages where that matters.

        Raises:
            OSError: the system or the device refuses.
        """
        ...
