"""The simulated accelerators, as the engine asks for them: codecs, which are NumPy on their memory, and streams."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial

import numpy as np

from tensorstash.host.arrays import Array, borrowed, lender
from tensorstash.host.pages import mapped_pages
from tensorstash.host.pinned import PinnedMemory, lockable_bytes
from tensorstash.protocols import Codec
from tensorstash.reference import DTYPES, Layout, Storage, Tensor, as_dtype, memory, streams
from tensorstash.spec import ALIGNMENT, TensorSpec

CODECS = frozenset({"affine", "astype", "pack_bits"})
"""Those that accelerators run; byte codecs, such as compression, are left to the host."""


class NumpyKernel:
    """A codec that runs on the memory of a simulated accelerator, on dense elements of a spec."""

    def __init__(self, codec: Codec, spec: TensorSpec) -> None:
        self._codec = codec
        self._spec = spec
        self._encoded = codec.encoded_spec(spec)

    def encode(self, dense: Tensor, /) -> Tensor:
        return self._run(self._codec.encode, dense, self._encoded)

    def decode(self, payload: Tensor, /) -> Tensor:
        return self._run(self._codec.decode, payload, self._spec)

    def _run(self, method: Callable[[Array, TensorSpec], Array], data: Tensor, result: TensorSpec) -> Tensor:
        values = borrowed(data.carriers())
        if streams.driver().launch is None:
            return contiguous(method(values, self._spec), result)
        # How large a payload is follows from the shape alone.
        encoded = method == self._codec.encode and result.shape == (-1,)
        shape = self._codec.encode(np.zeros_like(values), self._spec).shape if encoded else result.shape
        out = empty(shape, result)
        target = out.carriers()
        streams.current_stream(result.device).submit(lambda: np.copyto(target, method(values, self._spec)))
        return out


class DeviceKernels:
    """See :class:`tensorstash.abilities.Kernels`."""

    def kernel(self, codec: Codec, spec: TensorSpec, /) -> NumpyKernel | None:
        if spec.device == "cpu" or codec.name not in CODECS or codec.encoded_spec(spec).dtype not in DTYPES:
            return None
        return NumpyKernel(codec, spec)

    def payload(self, data: Array, spec: TensorSpec, /) -> Tensor:
        return contiguous(data.reshape(spec.shape), spec)


class DeviceLayouts:
    """Takes tensors apart and puts them together where they are; see :class:`tensorstash.abilities.Layouts`."""

    def dense(self, tensor: Tensor, spec: TensorSpec, /) -> Tensor:
        order = spec.order
        if order.is_dense:
            layout = Layout.contiguous(order.shape, spec.itemsize, tensor.layout.begin)
            return Tensor(tensor.storage, layout, tensor.dtype)
        packed = empty(order.shape, spec)
        packed.storage.write(packed.layout, packed.dtype, elements(tensor, spec))
        return packed

    def restored(self, dense: Tensor, spec: TensorSpec, /, *, adopt: bool) -> Tensor:
        if adopt and spec.order.is_dense and dense.data_ptr() % ALIGNMENT == spec.order.alignment(spec):
            return _within(dense.storage, dense.offset, spec)
        return laid_out(dense.carriers(), spec)


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

    locked_pages = staticmethod(mapped_pages)


def elements(tensor: Tensor, spec: TensorSpec) -> Array:
    """Return the distinct elements in memory order, where they are."""
    return tensor.storage.window(_in_order(tensor.layout.begin, spec), tensor.dtype)


def laid_out(values: Array, spec: TensorSpec) -> Tensor:
    """Return a tensor of ``values``, its distinct elements in memory order, with the exact layout of ``spec``."""
    order = spec.order
    storage = Storage.allocate(order.span * spec.itemsize, memory(spec.device), phase=order.alignment(spec))
    storage.write(_in_order(0, spec), as_dtype(spec.dtype), values.reshape(order.shape))
    return _within(storage, 0, spec)


def contiguous(data: Array, spec: TensorSpec) -> Tensor:
    """Return a contiguous tensor with a copy of ``data``, shaped like it, on the device of ``spec``."""
    if data.dtype.name != spec.carrier:
        raise TypeError(f"got elements of {data.dtype.name}, expected {spec.carrier}")
    tensor = empty(data.shape, spec)
    tensor.storage.write(tensor.layout, tensor.dtype, data.copy())
    return tensor


def empty(shape: tuple[int, ...], spec: TensorSpec) -> Tensor:
    """Return an uninitialised, contiguous tensor for work of the current stream, of the type and device of ``spec``."""
    dtype = as_dtype(spec.dtype)
    layout = Layout.contiguous(shape, dtype.itemsize)
    return Tensor(Storage.allocate(layout.numel * dtype.itemsize, memory(spec.device)), layout, dtype)


def _in_order(start: int, spec: TensorSpec) -> Layout:
    return Layout(spec.order.shape, spec.order.strides, start, spec.itemsize)


def _within(storage: Storage, start: int, spec: TensorSpec) -> Tensor:
    first = start + spec.order.lead * spec.itemsize
    return Tensor(storage, Layout(spec.shape, spec.strides, first, spec.itemsize), as_dtype(spec.dtype))


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
