"""Abilities of devices: codecs that run where the tensor is, and copies beside the computation. All thread-safe."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from tensorstash.host.arrays import Array
from tensorstash.host.pinned import PinnedMemory
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

T = TypeVar("T")


class Kernel(Protocol[T]):
    """A codec that runs where the tensor is, for tensors of one spec; stateless.

    It has the meaning of the codec, within the codec's bound; its payloads are its own and are only ever decoded by an
    equal kernel. Where a device has streams it launches on the current one, without waiting for the device, and it is
    indifferent to gradient recording, autocast and the user's random state.
    """

    def encode(self, dense: T, /) -> T:
        """Return a contiguous payload in fresh memory, of the shape and dtype of the codec's ``encoded_spec``.

        ``dense`` has the distinct elements in memory order; it is neither written to nor kept.
        """

    def decode(self, payload: T, /) -> T:
        """Return the distinct elements again in fresh memory, contiguous; never writes to ``payload``."""


class Kernels(Protocol[T]):
    """The codecs of a backend that run where the tensor is."""

    def kernel(self, codec: Codec, spec: TensorSpec, /) -> Kernel[T] | None:
        """Return the kernel that runs a codec on the device of a spec that it accepts; None if only the codec can.

        Asked once per codec and spec, which is that of the dense elements, or of the payload of the kernel before.
        """

    def payload(self, data: Array, spec: TensorSpec, /) -> T:
        """Return a contiguous tensor of ``spec`` for :meth:`Kernel.decode`; it may share the memory of ``data``."""


class Layouts(Protocol[T]):
    """Takes tensors apart and puts them together where they are."""

    def dense(self, tensor: T, spec: TensorSpec, /) -> T:
        """Return the distinct elements of a saved tensor in memory order, contiguous, without lazy flags.

        They are on the tensor's device, and may share its memory.
        """

    def restored(self, dense: T, spec: TensorSpec, /, *, adopt: bool) -> T:
        """Return a detached tensor in private memory with the exact layout of ``spec``, made on its device.

        ``dense`` has the distinct elements in memory order, contiguous, in any shape; ``adopt`` gives its memory away.
        """


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether the device has come to it; never waits."""

    def synchronize(self) -> None:
        """Make the calling thread wait until the device has come to it; other threads run meanwhile."""


class Stream(Protocol):
    """A queue of work of one device; equal to itself alone, and to other objects for the same queue."""

    def wait_event(self, event: Any, /) -> None:
        """Let later work begin only after ``event``, of any stream of the same framework."""


class Streams(Protocol[T]):
    """The devices of a backend that work behind the program, so that copies can run beside the computation.

    The order is the engine's affair. A tensor's memory belongs to the stream that was current when it was allocated:
    once freed, it may be handed out again at once to work of that stream.
    """

    def current_stream(self, device: str, /) -> Stream | None:
        """Return the stream that this thread submits the device's work to, or None if that device has no streams.

        Raises:
            BackendError: the work is not being done but recorded, to be replayed later (CUDA graphs).
        """

    def why_copies_wait(self, device: str, /) -> str | None:
        """Say why copies of a device make the program wait; None if they run beside it."""

    def recorded(self, stream: Any, /) -> Event:
        """Return the point after all work that was submitted to a stream so far."""

    def side_stream(self, device: str, direction: str, /) -> Stream:
        """Return a stream for copies of that device, "out" or "back", which sessions may share."""

    def on_device(self, device: str, /) -> AbstractContextManager[Any]:
        """Return a context manager that makes a device current on this thread, so that no other one is touched."""

    def empty(self, spec: TensorSpec, /) -> T:
        """Return an uninitialised, contiguous, detached tensor for work of the device's current stream."""

    def copy_out(self, sources: Sequence[T], targets: Sequence[Array], stream: Any, /) -> None:
        """Submit to ``stream`` copies of contiguous tensors of one device into as many writable ``uint8`` bytes each.

        Nothing is kept alive for them. It may wait for a copy whose target is not page-locked.
        """

    def copy_in(self, sources: Sequence[Array], targets: Sequence[T], stream: Any, /) -> None:
        """Submit to ``stream`` copies of host memory into contiguous tensors; as :meth:`copy_out`, the other way."""

    def use_in(self, tensors: Sequence[T], stream: Any, /) -> None:
        """Let the memory of tensors, once it is freed, wait for the work that ``stream``, not its own, has by then."""

    @property
    def pinned(self) -> PinnedMemory:
        """Page-locked host memory that all sessions of the process share."""

    def locked_pages(self, nbytes: int, /) -> Array:
        """Return page-locked host memory, which devices copy on their own; unlocked when the last view of it goes.

        Raises:
            OSError: the system or the device refuses.
        """
