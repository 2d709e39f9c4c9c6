"""A stand-alone automatic differentiation engine on NumPy, with the saved-tensor hooks of both frameworks.

It is the yardstick of the hook contract: tensors of any layout over versioned storage, a simulated accelerator with
memory of its own, a graph without reference cycles, and the whole documented surface of PyTorch's and Paddle's
saved-tensor hooks.

>>> from tensorstash.reference import saved_tensors_hooks, tensor
>>> a = tensor([2.0], requires_grad=True)
>>> b = tensor([3.0], requires_grad=True)
>>> (a * b).backward()
>>> a.grad.item(), b.grad.item()
(3.0, 2.0)
"""

from tensorstash.reference import nn, ops, optim
from tensorstash.reference.autograd.checkpoint import checkpoint
from tensorstash.reference.autograd.engine import backward, grad
from tensorstash.reference.autograd.gradcheck import GradientError, check_grads
from tensorstash.reference.autograd.graph import Edge, Meta, Node
from tensorstash.reference.autograd.hooks import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from tensorstash.reference.autograd.modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from tensorstash.reference.autograd.pylayer import PyLayer, PyLayerContext
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.creation import (
    arange,
    from_buffer,
    from_numpy,
    full,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from tensorstash.reference.dispatch import OPERATIONS
from tensorstash.reference.errors import DeviceError, GraphReleasedError, HookError, InplaceError, OutOfMemoryError
from tensorstash.reference.random import Generator
from tensorstash.reference.storage import streams
from tensorstash.reference.storage.dtypes import DTYPES, DType, as_dtype
from tensorstash.reference.storage.layout import Layout
from tensorstash.reference.storage.memory import MemorySpace, Storage, memory
from tensorstash.reference.tensor import Parameter, Tensor

__all__ = [
    "DTYPES",
    "OPERATIONS",
    "DType",
    "DeviceError",
    "Edge",
    "Generator",
    "GradientError",
    "GraphReleasedError",
    "HookError",
    "InplaceError",
    "Layout",
    "MemorySpace",
    "Meta",
    "Node",
    "OutOfMemoryError",
    "Parameter",
    "PyLayer",
    "PyLayerContext",
    "SavedTensor",
    "Storage",
    "Tensor",
    "arange",
    "as_dtype",
    "backward",
    "check_grads",
    "checkpoint",
    "disable_saved_tensors_hooks",
    "enable_grad",
    "from_buffer",
    "from_numpy",
    "full",
    "grad",
    "is_grad_enabled",
    "memory",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "ops",
    "optim",
    "save_on_cpu",
    "saved_tensors_hooks",
    "set_grad_enabled",
    "streams",
    "tensor",
    "zeros",
    "zeros_like",
]
