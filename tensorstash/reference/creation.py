"""Making tensors from data, from raw bytes and from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorstash.reference.storage.dtypes import Array, DTypeLike, as_dtype
from tensorstash.reference.storage.layout import Layout
from tensorstash.reference.storage.memory import Storage, memory
from tensorstash.reference.tensor import Tensor


def tensor(data: Any, dtype: DTypeLike | None = None, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Copy numbers, nested sequences or an array into a new tensor.

    Without a type, Python floats become float32 and Python integers int64; arrays keep theirs.

    >>> tensor([[1.0, 2.0]])
    tensor([[1., 2.]], float32, cpu)
    """
    array = np.asarray(data)
    if dtype is None and not isinstance(data, np.ndarray | np.generic) and array.dtype.kind == "f":
        dtype = "float32"
    kind = as_dtype(array.dtype if dtype is None else dtype)
    if not kind.is_computed:
        raise TypeError(f"numbers cannot become {kind}; make its bits a tensor by from_buffer()")
    layout = Layout.contiguous(array.shape, kind.itemsize)
    result = Tensor(Storage.allocate(layout.numel * kind.itemsize, memory(device)), layout, kind)
    with np.errstate(all="ignore"):
        result.storage.write(layout, kind, array.astype(kind.carrier))
    return result.requires_grad_(requires_grad)


def from_buffer(
    buffer: Array, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: DTypeLike, device: str = "cpu"
) -> Tensor:
    """Give a tensor of any layout over raw bytes: strides in elements, offset in bytes.

    A flat, writable uint8 buffer is adopted as the storage on the host. To an accelerator it is copied once, there to
    the same address modulo 64.
    """
    space, kind = memory(device), as_dtype(dtype)
    if space.is_host:
        storage = Storage(buffer, space)
    else:
        storage = Storage.allocate(buffer.nbytes, space, phase=buffer.ctypes.data % 64)
        storage.write(Layout.contiguous(buffer.shape, 1), as_dtype("uint8"), buffer.copy())
    return Tensor(storage, Layout(tuple(shape), tuple(strides), offset, kind.itemsize), kind)


def full(
    shape: Sequence[int], value: complex, dtype: DTypeLike = "float32", device: str = "cpu", requires_grad: bool = False
) -> Tensor:
    """Give a dense tensor of one value."""
    return tensor(np.full(shape, value), dtype, device, requires_grad)


def zeros(shape: Sequence[int], dtype: DTypeLike = "float32", device: str = "cpu", **options: bool) -> Tensor:
    """Give a dense tensor of zeros."""
    return full(shape, 0, dtype, device, **options)


def ones(shape: Sequence[int], dtype: DTypeLike = "float32", device: str = "cpu", **options: bool) -> Tensor:
    """Give a dense tensor of ones."""
    return full(shape, 1, dtype, device, **options)
