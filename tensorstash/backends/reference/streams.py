"""Streams of the simulated accelerators, as the engine asks for them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial

import numpy as np

from tensorstash.backends.reference.kernels import empty
from tensorstash.host.arrays import Array, lender
from tensorstash.host.pages import mapped_pages
from tensorstash.host.pinned import PinnedMemory, lockable_bytes
from tensorstash.reference import Tensor, streams
from tensorstash.spec import TensorSpec


class DeviceStreams:
    """The streams of the simulated accelerators; see :class:`tensorstash.abilities.Streams`."""

    @cached_property
    def pinned(self) -> PinnedMemory:
        return PinnedMemory(self.locked_pages, lockable_bytes())

    def current_stream(self, device: str, /) -> streams.Stream | None:
        return None if device == "cpu" else streams.current_stream(device)

    def why_copies_wait(self, device: str, /) -> str | None:
        return None

    def recorded(self, stream: streams.Stream, /) -> streams.Event:
        return stream.record()

    def side_stream(self, device: str, direction: str, /) -> streams.Stream:
        return streams.Stream(device)

    def on_device(self, device: str, /) -> AbstractContextManager[None]:
        return nullcontext()

    def empty(self, spec: TensorSpec, /) -> Tensor:
        return empty(spec.shape, spec)

    def copy_out(self, sources: Sequence[Tensor], targets: Sequence[Array], stream: streams.Stream, /) -> None:
        for source, target in zip(sources, targets, strict=True):
            stream.submit(partial(np.copyto, _bare(target), _bytes(source)))

    def copy_in(self, sources: Sequence[Array], targets: Sequence[Tensor], stream: streams.Stream, /) -> None:
        for source, target in zip(sources, targets, strict=True):
            stream.submit(partial(np.copyto, _bytes(target), _bare(source)))

    def use_in(self, tensors: Sequence[Tensor], stream: streams.Stream, /) -> None:
        for tensor in tensors:
            streams.driver().use_in(tensor.storage, stream)

    def locked_pages(self, nbytes: int, /) -> Array:
        return mapped_pages(nbytes)


def _bytes(tensor: Tensor) -> Array:
    # The bytes alone: a copy under way keeps neither the tensor nor its storage from being freed.
    return tensor.storage.buffer[tensor.offset : tensor.offset + tensor.nbytes]


def _bare(array: Array) -> Array:
    """Return the same memory without its way back to the pool: a device keeps nothing alive."""
    base: object = lender(array).base
    if not isinstance(base, memoryview):
        return array
    whole: Array = np.frombuffer(base, np.uint8)
    start = array.ctypes.data - whole.ctypes.data
    return whole[start : start + array.nbytes]
