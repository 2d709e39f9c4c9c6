"""Between the memory of Paddle tensors and NumPy arrays: distinct elements out, exact layouts back in.

Paddle puts only the *allocation* of the result of ``unpack`` in place of a saved tensor, read with the shape,
strides and byte offset of the saved tensor (Paddle PR #65619, #69585). A tensor that is equal in value but laid out
otherwise is silently misread, so everything here rebuilds strides and byte offset, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from tensorstash.errors import BackendError
from tensorstash.host.arrays import Array, aligned_empty, as_bytes, borrowed
from tensorstash.spec import ALIGNMENT, DTYPES, TensorSpec, contiguous_strides

_DTYPES: Mapping[str, Any] = MappingProxyType(
    # Paddle's uint16 is another name of bfloat16, and its uint32 and uint64 have no operations.
    {
        name: getattr(paddle, name)
        for name in DTYPES
        if hasattr(paddle, name) and name not in ("uint16", "uint32", "uint64")
    }
)
"""The element types of this build that can be moved."""

_NAMES: Mapping[int, str] = MappingProxyType({id(dtype): name for name, dtype in _DTYPES.items()})

_EXCHANGED: Mapping[str, str] = MappingProxyType(
    {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
)
"""The types that DLPack does not take here, and the carriers of their bits."""


_contiguous = lru_cache(4096)(contiguous_strides)


def dtype_name(dtype: Any) -> str | None:
    """Return the name of an element type that can be moved, else None."""
    # Every tensor gives out the same object for a type, whose own hash and equality cost a third of a microsecond.
    known = _NAMES.get(id(dtype))
    return known or next((name for name, other in _DTYPES.items() if other == dtype), None)


@lru_cache(64)
def place_name(place: Any) -> str:
    """Return the framework's name of a place, such as ``"cpu"`` or ``"gpu:0"``."""
    return str(place).removeprefix("Place(").removesuffix(")")


def spec_of(tensor: Tensor) -> TensorSpec:
    """Return the spec of a tensor with memory, and a type that can be moved; tensors of one layout get one object."""
    place = tensor.place
    return _spec(
        tuple(tensor.shape),
        tuple(tensor.strides),
        tensor._offset(),
        dtype_name(tensor.dtype),
        "cpu" if place.is_cpu_place() else place_name(place),
        tensor.data_ptr() % ALIGNMENT,
    )


@lru_cache(4096)
def _spec(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: str, device: str, alignment: int
) -> TensorSpec:
    return TensorSpec(shape, strides, offset, dtype, device, alignment=alignment)


def is_plain(spec: TensorSpec) -> bool:
    """Whether a tensor is laid out as kernels lay out results, and NumPy has its type: no view is needed."""
    return spec.offset == 0 and spec.strides == _contiguous(spec.shape) and spec.dtype not in _EXCHANGED


def is_out_of_reach(tensor: Tensor) -> bool:
    """Whether a dense tensor can be read and rebuilt only with Paddle's kernels for views, which are switched off."""
    # Not by is_contiguous(), which raises where it is not, when those kernels are off.
    is_contiguous = not tensor._offset() and tuple(tensor.strides) == _contiguous(tuple(tensor.shape))
    if is_contiguous and dtype_name(tensor.dtype) not in _EXCHANGED:
        return False
    flags: Any = paddle.get_flags("FLAGS_use_stride_kernel")
    return not flags["FLAGS_use_stride_kernel"]


def elements(tensor: Tensor, spec: TensorSpec) -> Array:
    """See :meth:`tensorstash.abilities.Backend.to_host`.

    Not by ``Tensor.contiguous()``, which would rearrange the user's own tensor.
    """
    order = spec.order
    if order.span == 0:
        return np.empty(order.shape, spec.carrier)
    on_host = spec.device == "cpu"
    run = (
        tensor.detach() if is_plain(spec) else paddle.as_strided(tensor.detach(), [order.span], [1], order.lowest(spec))
    )
    if not on_host:
        # One run, gaps included: a copy of anything else takes a kernel, which a custom device may not have.
        run = run._copy_to(paddle.CPUPlace(), True)
    flat = _as_array(run, spec)
    if order.is_dense:
        array = flat.reshape(order.shape)
        return borrowed(array) if on_host else array
    strides = tuple(stride * spec.itemsize for stride in order.strides)
    return np.ndarray(order.shape, flat.dtype, flat, strides=strides).copy()


def rebuilt(data: Array, spec: TensorSpec) -> Tensor:
    """See :meth:`tensorstash.abilities.Backend.from_host`."""
    order = spec.order
    if order.span == 0:
        return uninitialised(spec.shape, spec)
    if spec.device == "cpu":
        return _on_host(_host_memory(data, spec), spec)
    run = TensorSpec((order.span,), (1,), 0, spec.dtype, "cpu")
    # Device allocations are aligned alike, so that the same offset is the same alignment.
    whole = uninitialised((order.lowest(spec) // spec.itemsize + order.span,), spec)
    # Not by paddle.assign(output=view): where a device has no kernel for it, the host's makes a new tensor, which takes
    # the place of the view, and the memory behind it stays as it was (Paddle 3.3.1).
    memory = _on_host(_host_memory(data, spec), run)
    target = paddle.as_strided(whole, [order.span], [1], order.lowest(spec)).copy_(memory, True)
    if not target._is_shared_buffer_with(whole):
        raise BackendError(
            f"a view on {spec.device} is a copy, so that tensors cannot be rebuilt there; keep tensors of this device "
            f"by a Route on Devices"
        )
    view: Tensor = paddle.as_strided(whole, list(spec.shape), list(spec.strides), spec.offset)
    return view


def fitted(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return the tensor itself if it is laid out as it must be, else a copy that is.

    Args:
        tensor: of the same shape, dtype and place.
        spec: of the saved tensor.
    """
    own = spec_of(tensor)
    if own.strides == spec.strides and own.offset == spec.offset:
        return tensor
    is_on_host = spec.device == "cpu"
    source = tensor.detach() if is_on_host else rebuilt(elements(tensor, own), replace(own, device="cpu"))
    order = spec.order
    on_host = _on_host(aligned_empty(order.span * spec.itemsize, order.alignment(spec)), spec)
    paddle.assign(source, output=on_host)
    return on_host if is_on_host else rebuilt(elements(on_host, replace(spec, device="cpu")), spec)


def private_copy(tensor: Tensor) -> Tensor:
    """Return a detached copy in memory that nobody else has, in the layout of a tensor with memory.

    Other types than those that can be moved are laid out by Paddle.
    """
    spec = None if tensor.is_dist() or dtype_name(tensor.dtype) is None else spec_of(tensor)
    if spec is None or (spec.offset == 0 and spec.strides == _contiguous(spec.shape)):
        return tensor.detach().clone()
    # By way of the host: a custom device may have no kernels for non-contiguous tensors.
    return rebuilt(borrowed(elements(tensor, spec)), spec)


class _Shifted:
    """Memory seen from an address before its start, where byte offsets in it begin to count.

    Args:
        memory: bytes.
        offset: of the memory's first byte.
        itemsize: of the elements that it is seen as, in bytes.
        carrier: their dtype.

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
    order = spec.order
    exchanged = _EXCHANGED.get(spec.dtype, spec.carrier)
    plain = is_plain(spec)
    if plain:
        seen = memory.view(exchanged).reshape(spec.shape)
    else:
        seen = np.asarray(_Shifted(memory, order.lowest(spec), spec.itemsize, exchanged))
    # Every call of the Tensor constructor, and so of paddle.to_tensor, leaks about 80 bytes; and memory that came
    # through DLPack is freed under a lock of Paddle's that waits for the interpreter's, a deadlock between threads.
    whole: Tensor = paddle._C_ops.empty([0], _DTYPES[exchanged], paddle.CPUPlace())
    whole.get_tensor().set(seen, paddle.CPUPlace(), True)
    if exchanged != spec.dtype:
        whole = whole.view(_DTYPES[spec.dtype])
    if plain:
        return whole
    view: Tensor = paddle.as_strided(whole, list(spec.shape), list(spec.strides), spec.offset)
    return view


def _host_memory(data: Array, spec: TensorSpec) -> Array:
    order = spec.order
    if order.is_dense and data.flags.writeable and data.ctypes.data % ALIGNMENT == order.alignment(spec):
        return as_bytes(data)
    memory = aligned_empty(order.span * spec.itemsize, order.alignment(spec))
    strides = tuple(stride * spec.itemsize for stride in order.strides)
    np.ndarray(order.shape, spec.carrier, memory, strides=strides)[...] = data.reshape(order.shape)
    return memory


def uninitialised(shape: tuple[int, ...], spec: TensorSpec) -> Tensor:
    """Return a contiguous tensor of the type and place of ``spec``, whose memory holds anything."""
    place = paddle.device._convert_to_place(spec.device)
    return paddle._C_ops.empty(list(shape), _DTYPES[spec.dtype], place)


def _as_array(run: Tensor, spec: TensorSpec) -> Array:
    exchanged = _EXCHANGED.get(spec.dtype)
    if exchanged is None:
        array: Array = np.from_dlpack(run)
        return array
    return np.from_dlpack(run.view(_DTYPES[exchanged])).view(spec.carrier)
