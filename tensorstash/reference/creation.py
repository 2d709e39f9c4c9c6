"""Making tensors from data, from raw bytes and from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorstash.reference.storage.dtypes import Array, DType, DTypeLike, as_dtype, float32, uint8
from tensorstash.reference.storage.layout import Layout
from tensorstash.reference.storage.memory import Storage, memory
from tensorstash.reference.tensor import Tensor


def tensor(data: Any, dtype: DTypeLike | None = None, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Copy numbers, nested sequences or an array into a new tensor.

    Args:
        data: anything ``numpy.asarray`` takes; Python floats become float32, Python integers int64.
        dtype: element type, by default that of the data.
        device: where to put it.
        requires_grad: whether it is a leaf that wants a gradient.

    >>> tensor([[1.0, 2.0]])
    tensor([[1., 2.]], float32, cpu)
    """
    array = np.asarray(data)
    if dtype is None and not isinstance(data, np.ndarray | np.generic):
        defaults: dict[str, DTypeLike] = {"f": float32, "c": "complex64"}
        dtype = defaults.get(array.dtype.kind, array.dtype)
    kind = as_dtype(array.dtype if dtype is None else dtype)
    result = _empty(array.shape, kind, device)
    with np.errstate(all="ignore"):
        _fill(result, kind.encode(array))
    return result.requires_grad_(requires_grad)


def from_buffer(
    buffer: Array, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: DTypeLike, device: str = "cpu"
) -> Tensor:
    """Give a tensor of any layout over raw bytes.

    Args:
        buffer: flat, writable uint8 array. Adopted as the storage on the host, copied once to an accelerator, there
            at the same address modulo 64.
        shape: extents.
        strides: steps in elements.
        offset: position of the first element in bytes.
        dtype: element type.
        device: where the bytes are to lie.

    Raises:
        ValueError: the layout leaves the buffer, or the buffer is not flat, writable bytes.
    """
    space, kind = memory(device), as_dtype(dtype)
    if space.is_host:
        storage = Storage(buffer, space)
    else:
        storage = Storage.allocate(buffer.nbytes, space, phase=buffer.ctypes.data % 64)
        storage.write(Layout.contiguous(buffer.shape, 1), uint8, buffer.copy())
    return Tensor(storage, Layout(tuple(shape), tuple(strides), offset, kind.itemsize), kind)


def full(
    shape: Sequence[int],
    value: complex,
    dtype: DTypeLike = float32,
    device: str = "cpu",
    requires_grad: bool = False,
) -> Tensor:
    """Give a dense tensor of one value."""
    kind = as_dtype(dtype)
    result = _empty(shape, kind, device)
    _fill(result, kind.encode(np.asarray(value)))
    return result.requires_grad_(requires_grad)


def zeros(shape: Sequence[int], dtype: DTypeLike = float32, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Give a dense tensor of zeros."""
    return full(shape, 0, dtype, device, requires_grad)


def ones(shape: Sequence[int], dtype: DTypeLike = float32, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Give a dense tensor of ones."""
    return full(shape, 1, dtype, device, requires_grad)


def _fill(tensor: Tensor, values: Array) -> None:
    tensor.storage.write(tensor.layout, tensor.dtype, values.copy())


def _empty(shape: Sequence[int], dtype: DType, device: str) -> Tensor:
    layout = Layout.contiguous(shape, dtype.itemsize)
    return Tensor(Storage.allocate(layout.numel * dtype.itemsize, memory(device)), layout, dtype)
