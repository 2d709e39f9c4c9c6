"""Codecs on the simulated accelerators: the NumPy meaning, run on device memory."""

from tensorstash.buffers import Array, borrowed
from tensorstash.protocols import Codec
from tensorstash.reference import DTYPES, Layout, Storage, Tensor, as_dtype, memory
from tensorstash.spec import MemoryOrder, TensorSpec

CODECS = frozenset({"affine", "astype", "pack_bits"})
"""Names of the codecs that accelerators run; byte codecs, such as compression, are left to the host."""


class NumpyKernel:
    """A codec that runs on the memory of a simulated accelerator.

    Args:
        codec: what to run.
        spec: of the dense elements.
    """

    def __init__(self, codec: Codec, spec: TensorSpec) -> None:
        self._codec = codec
        self._spec = spec
        self._encoded = codec.encoded_spec(spec)

    def encode(self, dense: Tensor, /) -> Tensor:
        """Return the payload in fresh memory."""
        return contiguous(self._codec.encode(borrowed(dense.carriers()), self._spec), self._encoded)

    def decode(self, payload: Tensor, /) -> Tensor:
        """Return the elements in fresh memory."""
        return contiguous(self._codec.decode(borrowed(payload.carriers()), self._spec), self._spec)


def kernel(codec: Codec, spec: TensorSpec) -> NumpyKernel | None:
    """Return what runs ``codec`` on the device of ``spec``, or None for host memory and for other codecs."""
    if spec.device == "cpu" or codec.name not in CODECS or codec.encoded_spec(spec).dtype not in DTYPES:
        return None
    return NumpyKernel(codec, spec)


def contiguous(data: Array, spec: TensorSpec) -> Tensor:
    """Return a contiguous tensor with a copy of ``data``, shaped like it, on the device of ``spec``."""
    dtype = as_dtype(spec.dtype)
    storage = Storage.allocate(data.nbytes, memory(spec.device))
    tensor = Tensor(storage, Layout.contiguous(data.shape, dtype.itemsize), dtype)
    tensor.carriers()[...] = data
    return tensor


def dense(tensor: Tensor, spec: TensorSpec, order: MemoryOrder) -> Tensor:
    """Return the distinct elements in memory order; shares the tensor's memory where they are one run of it."""
    if not order.is_dense:
        return contiguous(tensor.storage.window(_layout(order, tensor.offset, spec), tensor.dtype), spec)
    return Tensor(tensor.storage, Layout.contiguous(order.shape, spec.itemsize, tensor.offset), tensor.dtype)


def restored(dense: Tensor, spec: TensorSpec, order: MemoryOrder, *, adopt: bool) -> Tensor:
    """Return a tensor with the exact layout of ``spec``, in the memory of ``dense`` where that may be and fits."""
    storage, start = dense.storage, dense.offset
    if not (adopt and order.is_dense and dense.data_ptr() % 64 == spec.alignment):
        start = 0
        storage = Storage.allocate(order.span * spec.itemsize, memory(spec.device), phase=spec.alignment)
        window = storage.window(_layout(order, start, spec), dense.dtype)
        window[...] = dense.carriers().reshape(order.shape)
    return Tensor(storage, Layout(spec.shape, spec.strides, start, spec.itemsize), dense.dtype)


def _layout(order: MemoryOrder, start: int, spec: TensorSpec) -> Layout:
    return Layout(order.shape, order.strides, start, spec.itemsize)
