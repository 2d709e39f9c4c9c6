"""A stand-alone automatic differentiation engine on NumPy, with the saved-tensor hooks of both frameworks.

It is the yardstick of the hook contract: tensors of any layout over versioned storage, a simulated accelerator with
memory of its own, a graph without reference cycles, and saved-tensor hooks. It has the operations that the contract
is checked with, and no more.

>>> from tensorstash.reference import saved_tensors_hooks, tensor
>>> a = tensor([2.0], requires_grad=True)
>>> with saved_tensors_hooks(lambda x: x.host_bits(), lambda bits: tensor(bits)):
...     y = a * a
>>> y.backward()
>>> a.grad.tolist()
[4.0]
"""

from tensorstash.reference import methods, nn, ops
from tensorstash.reference.autograd.engine import backward, grad
from tensorstash.reference.autograd.graph import Meta, Node, is_grad_enabled, no_grad, set_grad_enabled
from tensorstash.reference.autograd.saved import SavedTensor, saved_tensors_hooks
from tensorstash.reference.creation import from_buffer, full, ones, tensor, zeros
from tensorstash.reference.errors import DeviceError, GraphReleasedError, HookError, InplaceError
from tensorstash.reference.storage import streams
from tensorstash.reference.storage.dtypes import DTYPES, DType, as_dtype
from tensorstash.reference.storage.layout import Layout
from tensorstash.reference.storage.memory import MemorySpace, Storage, memory
from tensorstash.reference.tensor import Parameter, Tensor

__all__ = [
    "DTYPES", "DType", "DeviceError", "GraphReleasedError", "HookError", "InplaceError", "Layout",
    "MemorySpace", "Meta", "Node", "Parameter", "SavedTensor", "Storage", "Tensor",
    "as_dtype", "backward", "from_buffer", "full", "grad", "is_grad_enabled", "memory",
    "methods", "nn", "no_grad", "ones", "ops", "saved_tensors_hooks", "set_grad_enabled", "streams", "tensor", "zeros",
]  # fmt: skip
