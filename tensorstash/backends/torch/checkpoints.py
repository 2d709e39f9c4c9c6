"""Modules of PyTorch that are computed again in backward."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._C import _current_graph_task_id
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn import Module, Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.random import fork_rng
from torch.utils import checkpoint as theirs
from torch.utils.weak import WeakIdKeyDictionary

from tensorstash.abilities.checkpoints import Repeats
from tensorstash.backends.repeat import Again, call_again
from tensorstash.backends.torch.hooks import opaque
from tensorstash.backends.torch.recipes.digests import device_digest
from tensorstash.errors import StashError
from tensorstash.host.checksum import checksum_at


class TorchRepeats(Repeats):
    """PyTorch's own checkpoints, which do not reenter."""

    tensor = Tensor
    constants = (torch.dtype, torch.device, torch.layout)
    notes = frozenset(vars(Module())) - {"training", "_modules"}
    source = theirs.__name__
    trained = "requires_grad"

    def is_checkpointed(self) -> bool:
        top = _top_saved_tensors_default_hooks(True)
        return _current_graph_task_id() >= 0 or (top is not None and getattr(top[0], "__module__", "") == self.source)

    def repeat(self, again: Again, tensors: list[Any]) -> Any:
        return theirs.checkpoint(again, *tensors, use_reentrant=False)

    def is_buffer(self, value: Any) -> bool:
        return type(value) is Tensor and not value.requires_grad and not isinstance(value._base, Parameter)

    @cached_property
    def _steps(self) -> Any:
        register_optimizer_step_post_hook(self._stepped)  # fused optimizers raise no version
        return WeakIdKeyDictionary()

    def _stepped(self, optimizer: Any, *_: object) -> None:
        for weight in (each for group in optimizer.param_groups for each in group["params"] if each.grad is not None):
            self._steps[weight] = self._steps.get(weight, 0) + 1

    def version(self, weight: Any) -> Hashable:
        return (type(weight) is Tensor and weight.is_inference()) or weight._version, self._steps.get(weight)

    def digest(self, value: Any) -> Hashable:
        tensor = value.get_state() if isinstance(value, torch.Generator) else value
        if not isinstance(tensor, Tensor):
            return None
        if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
            return tuple(self.digest(getattr(tensor, name)) for name in flatten()[0]), tensor._version
        if tensor.dtype == torch.uint64 and tensor.numel() <= 2:
            # Flash attention saves places of random states, which nobody writes without dropout (aten flash_api.cpp).
            return "a random state", 0
        plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        bits = plain.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
        if bits.is_cpu and bits.nbytes and not bits.data_ptr():
            raise StashError("a tensor without memory")
        # An array of NumPy would keep the storage from being resized for ever.
        summed = checksum_at(bits.data_ptr(), bits.nbytes) if bits.is_cpu else int(device_digest(bits))
        return summed, tensor._version

    def numbers(self, tensors: list[Any]) -> Callable[[], AbstractContextManager[None]]:
        devices = [*{tensor.device for tensor in tensors} - {torch.device("cpu"), torch.device("meta")}]
        kind = devices[0].type if devices else "cpu"
        module, host = torch.get_device_module(kind), torch.get_rng_state()
        states = [module.get_rng_state(device) for device in devices]

        @contextmanager
        def set_back() -> Iterator[None]:
            with fork_rng(devices, device_type=kind):
                torch.set_rng_state(host)
                for device, state in zip(devices, states, strict=True):
                    module.set_rng_state(state, device)
                yield

        return set_back


# With all that it calls.
opaque(call_again)
opaque(Again.__call__)
