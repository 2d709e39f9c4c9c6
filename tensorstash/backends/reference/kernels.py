"""Codecs on the simulated accelerators: the NumPy meaning, run on device memory."""

from collections.abc import Callable

import numpy as np

from tensorstash.host.arrays import Array, borrowed
from tensorstash.protocols import Codec
from tensorstash.reference import DTYPES, Layout, Storage, Tensor, as_dtype, memory, streams
from tensorstash.spec import ALIGNMENT, TensorSpec

CODECS = frozenset({"affine", "astype", "pack_bits"})
"""Names of the codecs that accelerators run; byte codecs, such as compression, are left to the host."""


class NumpyKernel:
    """A codec that runs on the memory of a simulated accelerator.

    Args:
        codec: to run.
        spec: of the dense elements.
    """

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
    """The codecs that run on simulated accelerators; see :class:`tensorstash.abilities.Kernels`."""

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
