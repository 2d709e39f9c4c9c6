"""Modules of PyTorch that are computed again in backward."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch._C import _current_graph_task_id
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn import Module
from torch.utils import checkpoint as theirs

from tensorstash.backends.repeat import Again, Repeats, call_again
from tensorstash.backends.torch.hooks import opaque
from tensorstash.backends.torch.recipes.digests import device_digest
from tensorstash.host.checksum import checksum_at


class TorchRepeats(Repeats):
    """PyTorch's own checkpoints, which do not reenter."""

    tensor = Tensor
    generator = torch.Generator
    constants = (torch.dtype, torch.device, torch.layout)
    notes = frozenset(vars(Module())) - {"training"}
    inside = "_modules"
    reenters = False
    source = theirs.__name__

    def is_checkpointed(self) -> bool:
        top = _top_saved_tensors_default_hooks(True)
        return _current_graph_task_id() >= 0 or (top is not None and getattr(top[0], "__module__", "") == self.source)

    def repeat(self, again: Again, tensors: list[Any]) -> Any:
        return theirs.checkpoint(again, *tensors, use_reentrant=False)

    def is_buffer(self, value: Any) -> bool:
        return type(value) is Tensor and not value.requires_grad

    def digest(self, value: Any) -> Hashable:
        tensor = value.get_state() if isinstance(value, torch.Generator) else value.detach()
        if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
            parts = [getattr(tensor, name) for name in flatten()[0]]
            return tuple(self.digest(part) for part in parts if isinstance(part, Tensor))
        if tensor.dtype == torch.uint64 and tensor.numel() <= 2:
            # Flash attention saves places of random states, which nobody writes without dropout (aten flash_api.cpp).
            return "a random state"
        plain = tensor.to_dense() if tensor.layout != torch.strided else tensor
        bits = plain.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
        # An array of NumPy would keep the storage from being resized for ever.
        return checksum_at(bits.data_ptr(), bits.nbytes) if bits.is_cpu else int(device_digest(bits))

    def numbers(self, tensors: list[Any]) -> Callable[[], None]:
        host = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors} - {torch.device("cpu"), torch.device("meta")}
        modules = [(torch.get_device_module(device), device) for device in devices]
        states = [(module, device, module.get_rng_state(device)) for module, device in modules]

        def back() -> None:
            torch.set_rng_state(host)
            for module, device, state in states:
                module.set_rng_state(state, device)

        return back


# With all that it calls.
opaque(call_again)
opaque(Again.__call__)
