"""Between the memory of PyTorch tensors and NumPy arrays: distinct elements out, exact layouts back in."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.buffers import Array, aligned_empty, as_bytes, borrowed
from tensorstash.spec import ALIGNMENT, DTYPES, MemoryOrder, TensorSpec

DTYPE_NAMES: Mapping[torch.dtype, str] = MappingProxyType(
    {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
)
"""The element types of this build that can be moved."""

_CARRIERS: Mapping[str, torch.dtype] = MappingProxyType(
    {name: getattr(torch, row.carrier) for name, row in DTYPES.items()}
)


class CopiedArray:
    """A copy to the host that is already there."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        """Return the elements in memory order; read-only if the memory is still the tensor's own."""
        return self._array


def elements(tensor: Tensor, spec: TensorSpec, order: MemoryOrder) -> Array:
    """Return the distinct elements of a tensor in memory order, as carrier bits.

    Args:
        tensor: any strided tensor with memory of its own device.
        spec: its spec.
        order: ``memory_order(spec.shape, spec.strides)``.

    Returns:
        A read-only view of the tensor's live memory where that is one run of host memory, else a private copy.
    """
    with DisableTorchFunction(), _DisableTorchDispatch():  # unseen by dispatch modes and default devices
        plain = tensor.detach()
        if spec.conj:
            plain = plain.conj()
        if spec.neg:
            plain = torch._neg_view(plain)
        run = plain.view(_CARRIERS[spec.dtype]).as_strided(order.shape, order.strides)
        on_host = run.device.type == "cpu"
        if not order.is_dense:
            run = run.clone(memory_format=torch.contiguous_format)
        array: Array = run.cpu().numpy()
    return borrowed(array) if on_host and order.is_dense else array


def rebuilt(data: Array, spec: TensorSpec, order: MemoryOrder) -> Tensor:
    """Return a fresh, detached tensor with the exact layout of ``spec``, in private writable memory.

    Args:
        data: distinct elements in memory order, as carrier bits. Writable memory is adopted where it fits.
        spec: the layout.
        order: ``memory_order(spec.shape, spec.strides)``.
    """
    with DisableTorchFunction(), _DisableTorchDispatch():
        if spec.device == "cpu":
            memory = torch.from_numpy(_host_memory(data, spec, order))
        else:
            memory = _device_memory(data, spec, order)
        memory = memory.view(getattr(torch, spec.dtype))
        tensor = memory.as_strided(spec.shape, spec.strides, memory.storage_offset())
        if spec.conj:
            tensor = tensor.conj()
        if spec.neg:
            tensor = torch._neg_view(tensor)
        return tensor.detach()


def _host_memory(data: Array, spec: TensorSpec, order: MemoryOrder) -> Array:
    if order.is_dense and data.flags.writeable and data.ctypes.data % ALIGNMENT == spec.alignment:
        return as_bytes(data)
    memory = aligned_empty(order.span * spec.itemsize, spec.alignment)
    strides = tuple(stride * spec.itemsize for stride in order.strides)
    np.ndarray(order.shape, spec.carrier, memory, strides=strides)[...] = data.reshape(order.shape)
    return memory


def _device_memory(data: Array, spec: TensorSpec, order: MemoryOrder) -> Tensor:
    if not data.flags.writeable:  # PyTorch warns of arrays that it could write to
        data = data.copy()
    nbytes = order.span * spec.itemsize
    raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=spec.device)
    start = (spec.alignment - raw.data_ptr()) % ALIGNMENT
    memory = raw[start : start + nbytes]
    run = memory.view(_CARRIERS[spec.dtype])
    run.as_strided(order.shape, order.strides, run.storage_offset()).copy_(torch.from_numpy(data.reshape(order.shape)))
    return memory
