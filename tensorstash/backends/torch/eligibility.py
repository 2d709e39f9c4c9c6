"""PyTorch tensors that can be rebuilt exactly, and the reasons why others cannot."""

from functools import lru_cache

import torch
from torch import Tensor
from torch._C import _TorchDispatchModeKey
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import Parameter

_REASONS = {
    "nested": ("Nested",),
    "sparse layout": ("Sparse",),
    "opaque layout": ("Mkldnn", "Vulkan"),
    "quantized": ("Quantized",),
    "no real memory": ("Meta", "ZeroTensor"),
    "tracing": ("Functionalize",),
    "function transform": ("FuncTorch",),
    "subclass": ("Python",),
    "deferred computation": ("XLA", "Lazy"),
}
"""Why tensors with a key whose name begins like that are kept."""

_FLAGS = ("Conjugate", "Negative", "ADInplaceOrView")
# Of PyTorch's own list, so that a device that it learns of later is plain, too; FPGA alone is missing there.
_DEVICES = (*(key.name for key in torch._C._functionality_to_backend_keys(torch._C.DispatchKey.Dense)), "FPGA")
_PLAIN_KEYS = frozenset((*_FLAGS, *_DEVICES)).difference(*_REASONS.values())


def subclass_reason(tensor: Tensor) -> str:
    """Say why a tensor that is no plain ``Tensor`` is kept."""
    if isinstance(tensor, Parameter):
        return "parameter"
    if isinstance(tensor, FakeTensor):
        return "no real memory"
    if isinstance(tensor, FunctionalTensor):
        return "tracing"
    return "subclass"


@lru_cache(4096)
def dispatch_reason(raw_keys: int) -> str | None:
    """Say why a tensor with these dispatch keys is kept, or None for a plain strided one.

    They are the framework's own account of a tensor: layout, wrappers, device, lazy flags. A tensor not known to be
    plain is kept.
    """
    shown = str(torch._C.DispatchKeySet.from_raw_repr(raw_keys))
    names = shown.removeprefix("DispatchKeySet(").removesuffix(")").split(", ")
    odd = [name for name in names if name not in _PLAIN_KEYS and not name.startswith(("Autograd", "Autocast"))]
    found = [reason for reason, starts in _REASONS.items() if any(name.startswith(starts) for name in odd)]
    return (found or ["device"])[0] if odd else None


def is_tracing() -> bool:
    """Whether operations are being recorded, so that values read now would become constants of a program."""
    if torch._C._is_tracing():
        return True
    modes = (_TorchDispatchModeKey.FAKE, _TorchDispatchModeKey.PROXY, _TorchDispatchModeKey.FUNCTIONAL)
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in modes)


def is_recorded() -> bool:
    """Whether a program is made of the operations, as ``torch.jit.trace`` and ``torch.export`` do: it is run later."""
    return torch._C._is_tracing() or torch.compiler.is_exporting()
