"""Between the memory of Paddle tensors and NumPy arrays: distinct elements out, exact layouts back in.

Paddle puts only the *allocation* of the result of ``unpack`` in place of a saved tensor, read with the shape,
strides and byte offset of the saved tensor (Paddle PR #65619, #69585). A tensor that is equal in value but laid out
otherwise is silently misread, so everything here rebuilds strides and byte offset, too.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from tensorstash.backends.paddle.backward import Unrecorded
from tensorstash.errors import BackendError
from tensorstash.host.arrays import Array, aligned_empty, as_bytes, borrowed
from tensorstash.spec import ALIGNMENT, DTYPES, TensorSpec, contiguous_strides

# Paddle's uint16 is another name of bfloat16, and its uint32 and uint64 have no operations.
_MOVED = DTYPES.keys() - {"uint16", "uint32", "uint64"}

_DTYPES: dict[str, Any] = {name: getattr(paddle, name) for name in _MOVED if hasattr(paddle, name)}
"""The element types of this build that can be moved."""

_NAMES = {id(dtype): name for name, dtype in _DTYPES.items()}

_EXCHANGED = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""The types that DLPack does not take here, and the carriers of their bits."""

_as_strided: Callable[..., Tensor] = paddle.as_strided

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
    """See :meth:`tensorstash.abilities.Backend.spec`; tensors of one layout get one object."""
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


def is_plain(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: str) -> bool:
    """Whether a tensor is laid out as kernels lay out results, and NumPy has its type: no view is needed."""
    return offset == 0 and strides == _contiguous(shape) and dtype not in _EXCHANGED


def described(tensor: Tensor) -> str:
    """See :meth:`tensorstash.abilities.Backend.describe`; the text of the spec of a tensor that has one."""
    place = place_name(tensor.place) if tensor._is_initialized() else "no place"
    return f"{str(tensor.dtype).removeprefix('paddle.')}{tuple(tensor.shape)} on {place}"


def elements(tensor: Tensor, spec: TensorSpec) -> Array:
    """See :meth:`tensorstash.abilities.Backend.to_host`."""
    order, run = spec.order, _run(tensor, spec)
    if not order.is_dense:
        return _seen(run, spec, order.shape, order.strides).copy()
    array = run.reshape(order.shape)
    return borrowed(array) if spec.device == "cpu" else array


def rebuilt(data: Array, spec: TensorSpec) -> Tensor:
    """See :meth:`tensorstash.abilities.Backend.from_host`."""
    order = spec.order
    if order.is_dense and data.flags.writeable and data.ctypes.data % ALIGNMENT == order.alignment(spec):
        return _laid_out(as_bytes(data), spec)
    memory = aligned_empty(order.span * spec.itemsize, order.alignment(spec))
    _seen(memory, spec, order.shape, order.strides)[...] = data.reshape(order.shape)
    return _laid_out(memory, spec)


def fitted(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return a tensor of the shape, dtype and place of ``spec`` itself if it is laid out alike, else a copy that is."""
    own, order = spec_of(tensor), spec.order
    if own.strides == spec.strides and own.offset == spec.offset:
        return tensor
    memory = aligned_empty(order.span * spec.itemsize, order.alignment(spec))
    source = _seen(_run(tensor, own), own, own.shape, own.strides, own.order.lead)
    _seen(memory, spec, spec.shape, spec.strides, order.lead)[...] = source
    return _laid_out(memory, spec)


def private_copy(tensor: Tensor) -> Tensor:
    """Return a detached copy of a tensor with memory, in its layout unless its type cannot be moved."""
    spec = None if tensor.is_dist() or dtype_name(tensor.dtype) is None else spec_of(tensor)
    if spec is None or (spec.offset == 0 and spec.strides == _contiguous(spec.shape)):
        return tensor.detach().clone()
    # By way of the host: a custom device may have no kernels for non-contiguous tensors.
    return rebuilt(borrowed(elements(tensor, spec)), spec)


def _run(tensor: Tensor, spec: TensorSpec) -> Array:
    """Return the memory from the lowest to the highest element, gaps included, or on a device a copy of it.

    Not by ``Tensor.contiguous()``, which would rearrange the user's own tensor.
    """
    order = spec.order
    if order.span == 0:
        return np.empty(0, spec.carrier)
    run = tensor.detach()
    if not is_plain(spec.shape, spec.strides, spec.offset, spec.dtype):
        run = _as_strided(run, [order.span], [1], order.lowest(spec))
    if spec.device != "cpu":
        # A copy of anything but one run takes a kernel, which a custom device may not have.
        run = run._copy_to(paddle.CPUPlace(), True)
    if spec.dtype in _EXCHANGED:
        run = run.view(_DTYPES[_EXCHANGED[spec.dtype]])
    array: Array = np.from_dlpack(run).view(spec.carrier)
    return array


def _seen(run: Array, spec: TensorSpec, shape: Sequence[int], strides: Sequence[int], lead: int = 0) -> Array:
    steps = tuple(stride * spec.itemsize for stride in strides)
    return np.ndarray(shape, spec.carrier, run, lead * spec.itemsize, steps)


def _laid_out(memory: Array, spec: TensorSpec) -> Tensor:
    """Return the tensor whose elements, from the lowest to the highest, are in bytes of the host."""
    order = spec.order
    if order.span and spec.device == "cpu":
        return _on_host(memory, spec)
    dtype, place = _DTYPES[spec.dtype], paddle.device._convert_to_place(spec.device)
    if not order.span:
        return paddle._C_ops.empty(list(spec.shape), dtype, place)
    # Device allocations are aligned alike, so that the same offset is the same alignment.
    whole = paddle._C_ops.empty([order.lowest(spec) // spec.itemsize + order.span], dtype, place)
    # Not by paddle.assign(output=view): where a device has no kernel for it, the host's makes a new tensor, which takes
    # the place of the view, and the memory behind it stays as it was (Paddle 3.3.1).
    run = _on_host(memory, TensorSpec((order.span,), (1,), 0, spec.dtype, "cpu"))
    target: Any = _as_strided(whole, [order.span], [1], order.lowest(spec))
    if not target.copy_(run, True)._is_shared_buffer_with(whole):
        raise BackendError(
            f"a view on {spec.device} is a copy, so that tensors cannot be rebuilt there; keep tensors of this device "
            f"by a Route on Devices"
        )
    return _as_strided(whole, list(spec.shape), list(spec.strides), spec.offset)


def _on_host(memory: Array, spec: TensorSpec) -> Tensor:
    exchanged = _EXCHANGED.get(spec.dtype, spec.carrier)
    plain = is_plain(spec.shape, spec.strides, spec.offset, spec.dtype)
    if plain:
        seen = memory.view(exchanged).reshape(spec.shape)
    else:
        # From an address before the memory, where byte offsets begin to count: nothing there is read or written, and
        # nothing allocated in vain.
        lowest = spec.order.lowest(spec)
        shape, kind = ((lowest + memory.nbytes) // spec.itemsize,), np.dtype(exchanged).str
        data = memory.ctypes.data - lowest, False
        shown = {"version": 3, "data": data, "shape": shape, "typestr": kind}
        seen = np.asarray(SimpleNamespace(__array_interface__=shown, memory=memory))
    # Every call of the Tensor constructor, and so of paddle.to_tensor, leaks about 80 bytes; and memory that came
    # through DLPack is freed under a lock of Paddle's that waits for the interpreter's, a deadlock between threads.
    whole: Tensor = paddle._C_ops.empty([0], _DTYPES[exchanged], paddle.CPUPlace())
    whole.get_tensor().set(seen, paddle.CPUPlace(), True)
    if exchanged != spec.dtype:
        whole = whole.view(_DTYPES[spec.dtype])
    return whole if plain else _as_strided(whole, list(spec.shape), list(spec.strides), spec.offset)


def same_memory(tensor: Tensor) -> Tensor:
    """Return a view of all of a tensor, with its layout and version, that is another tensor to Paddle's C++ as well."""
    alias = tensor.detach()
    if tensor.is_contiguous():
        return alias.view(tensor.shape)
    return _as_strided(alias, tensor.shape, tensor.strides, tensor._offset())


def version_probe(tensor: Tensor) -> Tensor:
    """Return an empty tensor that shares the version of ``tensor``: a view that has let go of its memory."""
    with Unrecorded():
        probe = same_memory(tensor)
    probe._clear_data()
    return probe
