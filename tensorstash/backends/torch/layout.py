"""Between the memory of PyTorch tensors and NumPy arrays: distinct elements out, exact layouts back in."""

from collections.abc import Mapping
from ctypes import addressof, c_uint8
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch, _set_grad_enabled

from tensorstash.host.arrays import Array, adopted, aligned_empty
from tensorstash.host.blocks import Switched
from tensorstash.spec import ALIGNMENT, DTYPES, TensorSpec

DTYPE_NAMES: Mapping[torch.dtype, str] = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
"""The element types of this build that can be moved."""

_CARRIERS: Mapping[str, torch.dtype] = {name: getattr(torch, row.carrier) for name, row in DTYPES.items()}
_TYPES: Mapping[str, np.dtype[Any]] = {name: np.dtype(row.carrier) for name, row in DTYPES.items()}
_TORCH_TYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}

_START = c_uint8 * 0  # no bytes, which begin where an array does


def elements(tensor: Tensor, spec: TensorSpec) -> Array:
    """See :meth:`tensorstash.abilities.Backend.to_host`; raises RuntimeError if the storage is too small by now."""
    order = spec.order
    if spec.device == "cpu" and order.is_dense:
        live = _live(tensor, spec)
        live.flags.writeable = False
        return live
    with DisableTorchFunction(), _DisableTorchDispatch():  # unseen by dispatch modes and default devices
        if spec.device != "cpu":
            copy: Array = dense(tensor, spec).view(_CARRIERS[spec.dtype]).cpu().numpy()
            return copy
        # PyTorch would start threads of OpenMP for a worker that copies. From then on there are more of them than
        # cores, and the program's no longer spin while they wait for one another: libgomp's throttled spin count.
        live = _live(tensor, spec)
        array: Array = aligned_empty(live.nbytes).view(live.dtype).reshape(order.shape)
        array[...] = live
        return array


def _live(tensor: Tensor, spec: TensorSpec) -> Array:
    """Return a tensor's elements where they are in host memory, in memory order.

    ``Tensor.numpy`` would make the storage one that can never be resized again.
    """
    order, itemsize = spec.order, spec.itemsize
    start, span = spec.offset - order.lead * itemsize, order.span * itemsize
    nbytes = tensor.untyped_storage().nbytes()
    if span and start + span > nbytes:
        raise RuntimeError(f"the elements are out of bounds for storage of size {nbytes}")
    memory: Any = _run(span).from_address(tensor.data_ptr() - order.lead * itemsize)
    memory.tensor = tensor  # which lives as long as the array
    strides = None if order.is_dense else _steps(order.strides, itemsize)
    return np.ndarray(order.shape, _TYPES[spec.dtype], memory, 0, strides)


_run = lru_cache(1024)(c_uint8.__mul__)

Unrecorded = partial(Switched, torch.is_grad_enabled, _set_grad_enabled, False)
"""Makes a block without gradient recording."""


def rebuilt(data: Array, spec: TensorSpec) -> Tensor:
    """See :meth:`tensorstash.abilities.Backend.from_host`."""
    with DisableTorchFunction(), _DisableTorchDispatch():
        if spec.device != "cpu":
            return restored(payload(data, spec.dense()), spec, adopt=True)
        order, dtype, memory = spec.order, _TYPES[spec.dtype], data
        # NumPy takes longer to tell where an array begins; in a transform a tensor does not tell at all.
        if not (
            order.is_dense
            and data.flags.writeable
            and addressof(_START.from_buffer(data.data)) % ALIGNMENT == spec.alignment
        ):
            memory = aligned_empty(order.span * spec.itemsize, spec.alignment)
            target: Array = np.ndarray(order.shape, dtype, memory, 0, _steps(order.strides, spec.itemsize))
            target[...] = data.reshape(order.shape)
        # NumPy lays it out, too, which takes a third of the time that PyTorch needs.
        array: Array = np.ndarray(spec.shape, dtype, memory, 0, _steps(spec.strides, spec.itemsize))
        tensor = torch.from_numpy(array)
        is_plain = tensor.dtype is _TORCH_TYPES[spec.dtype] and not spec.conj and not spec.neg
        return tensor if is_plain else _finished(tensor, spec)


def placed(data: Array, spec: TensorSpec, memory: Array, start: int) -> Tensor:
    """See :meth:`tensorstash.abilities.SupportsSharedMemory.place`."""
    stop = start + spec.order.span * spec.itemsize
    with DisableTorchFunction(), _DisableTorchDispatch(), Unrecorded():
        run = torch.from_numpy(memory)[start:stop]  # with an in-place version of its own
        # On the threads of the program, which wait for it: NumPy has one, and takes almost twice as long.
        return _filled(run, torch.from_numpy(adopted(data)), spec)


def relaid(tensor: Tensor, spec: TensorSpec, wanted: TensorSpec) -> Tensor:
    """See :meth:`tensorstash.abilities.SupportsSharedMemory.relaid`."""
    with DisableTorchFunction(), _DisableTorchDispatch(), Unrecorded():
        start = tensor.storage_offset() + wanted.order.lead - spec.order.lead
        return tensor.as_strided(wanted.shape, wanted.strides, start).detach()


def dense(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """See :meth:`tensorstash.abilities.Layouts.dense`."""
    order = spec.order
    with DisableTorchFunction(), _DisableTorchDispatch():
        plain = tensor.detach()
        plain = plain.conj() if spec.conj else plain
        plain = torch._neg_view(plain) if spec.neg else plain
        run = plain.as_strided(order.shape, order.strides)
        if order.is_dense:
            return run
        # By way of bits: PyTorch warns of every tensor that is made as complex32.
        return run.view(_CARRIERS[spec.dtype]).clone(memory_format=torch.contiguous_format).view(run.dtype)


def restored(dense: Tensor, spec: TensorSpec, *, adopt: bool) -> Tensor:
    """See :meth:`tensorstash.abilities.Layouts.restored`."""
    if torch.is_grad_enabled():
        with Unrecorded():
            return restored(dense, spec, adopt=adopt)
    order = spec.order
    with DisableTorchFunction(), _DisableTorchDispatch():
        run = dense.reshape(-1).view(torch.uint8)
        if adopt and order.is_dense and run.data_ptr() % ALIGNMENT == spec.alignment:
            if spec.conj or spec.neg:
                return _laid_out(run, spec)
            memory = run.view(_TORCH_TYPES[spec.dtype])
            return memory.as_strided(spec.shape, spec.strides, memory.storage_offset()).detach()
        nbytes = order.span * spec.itemsize
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=spec.device)
        return _filled(raw[(spec.alignment - raw.data_ptr()) % ALIGNMENT :][:nbytes], dense, spec)


def payload(data: Array, spec: TensorSpec) -> Tensor:
    """Return a contiguous tensor of ``spec`` over carrier bits, which it may share and must not be written to."""
    with DisableTorchFunction(), _DisableTorchDispatch():
        # PyTorch warns of arrays that it could write to.
        carrier = torch.from_numpy(data if data.flags.writeable else adopted(data))
        return carrier.to(spec.device).view(getattr(torch, spec.dtype)).reshape(spec.shape)


def _filled(run: Tensor, elements: Tensor, spec: TensorSpec) -> Tensor:
    order, bits = spec.order, run.view(elements.dtype)
    bits.as_strided(order.shape, order.strides, bits.storage_offset()).copy_(elements.reshape(order.shape))
    return _laid_out(run, spec)


def _laid_out(memory: Tensor, spec: TensorSpec) -> Tensor:
    memory = memory.view(_TORCH_TYPES[spec.dtype])
    return _finished(memory.as_strided(spec.shape, spec.strides, memory.storage_offset()), spec)


def _finished(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return a tensor of carrier bits, or of a dtype, with the dtype and the lazy flags of ``spec``, no view."""
    dtype = _TORCH_TYPES[spec.dtype]
    if tensor.dtype is not dtype:
        tensor = tensor.view(dtype)
    if spec.conj:
        tensor = tensor.conj()
    if spec.neg:
        tensor = torch._neg_view(tensor)
    return tensor.detach() if tensor._is_view() else tensor


@lru_cache(4096)
def _steps(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return strides in bytes."""
    return tuple(map(itemsize.__mul__, strides))
