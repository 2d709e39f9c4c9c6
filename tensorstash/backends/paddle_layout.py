"""Between the memory of Paddle tensors and NumPy arrays: distinct elements out, exact layouts back in.

What Paddle puts in place of a saved tensor is only the *allocation* of what ``unpack`` returned, read with the shape,
strides and byte offset of the saved tensor (Paddle PR #65619, #69585). A tensor that is equal in value but laid out
otherwise is silently misread, so everything here rebuilds strides and byte offset, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from tensorstash.buffers import Array, aligned_empty, as_bytes, borrowed
from tensorstash.spec import ALIGNMENT, DTYPES, MemoryOrder, TensorSpec, memory_order

DTYPE_NAMES: Mapping[Any, str] = MappingProxyType(
    {
        getattr(paddle, name): name
        for name in DTYPES
        if name not in ("uint16", "uint32", "uint64") and hasattr(paddle, name)
    }
)
"""The element types of this build that can be moved. NumPy's uint16 stands for bfloat16 in Paddle."""

_EXCHANGED: Mapping[str, str] = MappingProxyType(
    {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
)
"""The types that DLPack does not take here, and what their bits travel as."""


class CopiedArray:
    """A copy to the host that is already there."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        """Return the elements in memory order; read-only if the memory is still the tensor's own."""
        return self._array


@lru_cache(64)
def place_name(place: Any) -> str:
    """Return the framework's name of a place, such as ``"cpu"`` or ``"gpu:0"``."""
    return str(place).removeprefix("Place(").removesuffix(")")


def elements(tensor: Tensor, spec: TensorSpec, order: MemoryOrder) -> Array:
    """Return the distinct elements of a tensor in memory order, as carrier bits.

    Neither the tensor nor its storage is changed: ``Tensor.contiguous()``, which would rearrange the user's own
    tensor, is not used.

    Args:
        tensor: any dense tensor with memory.
        spec: its spec.
        order: ``memory_order(spec.shape, spec.strides)``.

    Returns:
        A read-only view of the tensor's live memory where that is one run of host memory, else a private copy.
    """
    if order.span == 0:
        return np.empty(order.shape, spec.carrier)
    run = paddle.as_strided(tensor.detach(), [order.span], [1], spec.offset)
    on_host = spec.device == "cpu"
    if not on_host:
        if not order.is_dense:
            packed = paddle.empty(list(order.shape), tensor.dtype)
            run = paddle.assign(paddle.as_strided(run, list(order.shape), list(order.strides), spec.offset), packed)
        run = run.reshape([-1])._copy_to(paddle.CPUPlace(), True)
    flat = _as_array(run, spec)
    if order.is_dense or not on_host:
        array = flat.reshape(order.shape)
        return borrowed(array) if on_host else array
    strides = tuple(stride * spec.itemsize for stride in order.strides)
    return np.ndarray(order.shape, flat.dtype, flat, strides=strides).copy()


def rebuilt(data: Array, spec: TensorSpec, order: MemoryOrder) -> Tensor:
    """Return a fresh, detached tensor with the exact layout of ``spec``, in private writable memory.

    Args:
        data: distinct elements in memory order, as carrier bits. Writable memory is adopted where it fits.
        spec: the layout.
        order: ``memory_order(spec.shape, spec.strides)``.
    """
    if order.span == 0:
        return _uninitialised(spec.shape, spec)
    if spec.device == "cpu":
        return _on_host(_host_memory(data, spec, order), spec)
    tensor = _on_device(spec, order)
    run = paddle.as_strided(tensor, list(order.shape), list(order.strides), spec.offset)
    exchanged = np.ascontiguousarray(data.reshape(order.shape)).view(_EXCHANGED.get(spec.dtype, spec.carrier))
    source = paddle.to_tensor(exchanged, place=paddle.CPUPlace())._copy_to(tensor.place, True)
    paddle.assign(source.view(spec.dtype) if spec.dtype in _EXCHANGED else source, output=run)
    return tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """What a tensor must be like to stand in for a saved one.

    Args:
        shape: sizes of the dimensions.
        strides: in elements.
        offset: of the first element in the allocation, in bytes.
        dtype: Paddle's own.
        place: Paddle's own.
        alignment: address of the first element modulo 64, in bytes.
    """

    shape: list[int]
    strides: list[int]
    offset: int
    dtype: Any
    place: Any
    alignment: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Layout | None":
        """Return the layout of a tensor, or None for what has no memory of one device."""
        if tensor.is_dist() or not tensor._is_initialized() or tensor.dtype not in DTYPE_NAMES:
            return None
        alignment = tensor.data_ptr() % ALIGNMENT
        return cls(list(tensor.shape), tensor.strides, tensor._offset(), tensor.dtype, tensor.place, alignment)

    def __str__(self) -> str:
        return f"{DTYPE_NAMES[self.dtype]}{tuple(self.shape)} on {place_name(self.place)}"


def fitted(tensor: Tensor, layout: Layout) -> Tensor:
    """Return the tensor itself if it is laid out as it must be, else a copy that is.

    Args:
        tensor: of the same shape, dtype and place.
        layout: what the saved tensor was like.
    """
    if tensor.strides == layout.strides and tensor._offset() == layout.offset:
        return tensor
    spec = TensorSpec(
        tuple(layout.shape),
        tuple(layout.strides),
        layout.offset,
        DTYPE_NAMES[layout.dtype],
        place_name(layout.place),
        alignment=layout.alignment,
    )
    order = memory_order(spec.shape, spec.strides)
    if spec.device == "cpu":
        exact = _on_host(aligned_empty(order.span * spec.itemsize, spec.alignment), spec)
    else:
        exact = _on_device(spec, order)
    paddle.assign(tensor.detach(), output=exact)
    return exact


class _Shifted:
    """Memory seen from an address before its start, where the byte offset of a tensor begins to count.

    Nothing before the start is ever read or written; the alternative is to allocate ``offset`` bytes in vain.
    """

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: Array, offset: int, itemsize: int, carrier: str) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "data": (memory.ctypes.data - offset, False),
            "shape": ((offset + memory.nbytes) // itemsize,),
            "typestr": np.dtype(carrier).str,
        }


def _on_host(memory: Array, spec: TensorSpec) -> Tensor:
    shifted = _Shifted(memory, spec.offset, spec.itemsize, _EXCHANGED.get(spec.dtype, spec.carrier))
    whole = paddle.from_dlpack(np.asarray(shifted))
    if spec.dtype in _EXCHANGED:
        whole = whole.view(spec.dtype)
    return paddle.as_strided(whole, list(spec.shape), list(spec.strides), spec.offset)


def _host_memory(data: Array, spec: TensorSpec, order: MemoryOrder) -> Array:
    if order.is_dense and data.flags.writeable and data.ctypes.data % ALIGNMENT == spec.alignment:
        return as_bytes(data)
    memory = aligned_empty(order.span * spec.itemsize, spec.alignment)
    strides = tuple(stride * spec.itemsize for stride in order.strides)
    np.ndarray(order.shape, spec.carrier, memory, strides=strides)[...] = data.reshape(order.shape)
    return memory


def _on_device(spec: TensorSpec, order: MemoryOrder) -> Tensor:
    # Device allocations are aligned alike, so that the same offset is the same alignment.
    whole = _uninitialised((spec.offset // spec.itemsize + order.span,), spec)
    return paddle.as_strided(whole, list(spec.shape), list(spec.strides), spec.offset)


def _uninitialised(shape: tuple[int, ...], spec: TensorSpec) -> Tensor:
    place = paddle.device._convert_to_place(spec.device)
    return paddle._C_ops.empty(list(shape), getattr(paddle, spec.dtype), place)


def _as_array(run: Tensor, spec: TensorSpec) -> Array:
    exchanged = _EXCHANGED.get(spec.dtype)
    if exchanged is None:
        array: Array = np.from_dlpack(run)  # type: ignore[arg-type]
        return array
    array = np.from_dlpack(run.view(exchanged))  # type: ignore[arg-type]
    return array.view(spec.carrier)
