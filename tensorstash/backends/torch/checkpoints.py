"""Modules of PyTorch that are computed again in backward."""

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._C import _current_graph_task_id
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.nn import Buffer, Module, Parameter
from torch.utils import checkpoint as theirs
from torch.utils._pytree import tree_leaves
from xxhash import xxh3_64_intdigest

from tensorstash.backends import repeat
from tensorstash.backends.repeat import Repeats
from tensorstash.backends.torch.hooks import HookScope
from tensorstash.backends.torch.recipes.digests import device_digest

_FRAMES = 7
"""Frames between a hook and the function that saves inputs for a checkpoint."""


def is_checkpointed() -> bool:
    """Return whether a checkpoint is in force on this thread, or computes again."""
    top = _top_saved_tensors_default_hooks(True)
    return _current_graph_task_id() >= 0 or (top is not None and getattr(top[0], "__module__", "") == theirs.__name__)


class TorchRepeats(Repeats):
    """PyTorch's own checkpoints, which do not reenter."""

    tensor = Tensor
    generator = torch.Generator
    constants = (torch.dtype, torch.device, torch.layout)
    bringers = ("torch.", "accelerate.")
    sets_back_host = False

    def is_in_backward(self) -> bool:
        return _current_graph_task_id() >= 0

    def is_checkpointed(self, module: Any) -> bool:
        return bool(vars(module).get("gradient_checkpointing")) or is_checkpointed()

    def repeat(self, again: Callable[..., Any], module: Any, tensors: list[Any]) -> Any:
        return theirs.checkpoint(again, *tensors, use_reentrant=False)

    def finish(self, tensors: list[Any]) -> None:
        for device in {tensor.device for tensor in tensors} - {torch.device("cpu"), torch.device("meta")}:
            torch.accelerator.synchronize(device)

    def buffers(self, module: Any) -> dict[str, Any]:
        return {name: buffer for name, buffer in module.named_buffers() if type(buffer) in (Tensor, Buffer)}

    @contextmanager
    def unwritten(self, module: Any, names: tuple[str, ...]) -> Iterator[None]:
        # Written by way of .data: backward would refuse a new version.
        held = {name: module.get_buffer(name) for name in names}
        copies = {name: buffer.detach().clone() for name, buffer in held.items()}
        try:
            yield
        finally:
            for name, buffer in held.items():
                buffer.data.copy_(copies[name])

    def own(self, module: Any) -> frozenset[int]:
        return frozenset(buffer.untyped_storage()._cdata for buffer in self.buffers(module).values())

    def memory_of(self, tensor: Any, own: frozenset[int]) -> int | None:
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, Parameter):
            return id(base)
        if tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
            return None
        storage = int(tensor.untyped_storage()._cdata)
        return storage if storage in own else None

    def digest(self, tensor: Any, own: frozenset[int]) -> Hashable:
        kind = type(tensor), tensor.dtype, tensor.shape, tensor.device
        if (memory := self.memory_of(tensor, own)) is not None:
            return *kind, memory  # sharding may take the memory of weights away at any time
        if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
            parts = [getattr(tensor, name) for name in flatten()[0]]
            return *kind, *(self.digest(part, frozenset()) for part in parts if isinstance(part, Tensor))
        plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        bits = plain.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
        return *kind, xxh3_64_intdigest(bits.numpy().data) if bits.is_cpu else int(device_digest(bits))

    def address(self, tensor: Any) -> int:
        return id(tensor)

    def copied(self, tensor: Any) -> Any:
        return tensor.detach().requires_grad_(tensor.requires_grad).clone()

    def version(self, tensor: Any) -> int:
        return int(tensor._version)

    def saving(self, pack: Callable[[Any], None], unpack: Callable[[None], Any]) -> AbstractContextManager[None]:
        return HookScope(pack, unpack, trusted=True)

    def leaves(self, outputs: Any) -> tuple[list[Any], str]:
        return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)], ""

    def random_state(self, tensors: list[Any]) -> Callable[[], None]:
        devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
        modules: dict[torch.device, Any] = {device: torch.get_device_module(device) for device in devices}
        states = {one: module.get_rng_state(one) for one, module in modules.items() if hasattr(module, "get_rng_state")}
        state = torch.get_rng_state()

        def set_back() -> None:
            torch.set_rng_state(state)
            for device, of_device in states.items():
                modules[device].set_rng_state(of_device, device)

        return set_back

    def parts(self, module: Module) -> Iterable[tuple[str, Any]]:
        yield from module.named_modules()

    def is_weight(self, value: object) -> bool:
        return isinstance(value, Tensor) and isinstance(value if value._base is None else value._base, Parameter)

    def is_checkpoint_saving(self) -> bool:
        frame = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame.f_code.co_filename == theirs.__file__:
                return True
            if frame.f_back is not None:
                frame = frame.f_back
        return False


def _keep_from_compiler(code: CodeType) -> None:
    # The compiler compiles the module that is called inside, as ever.
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _keep_from_compiler(inner)


for _home in (vars(repeat), vars(repeat._Run), globals(), vars(TorchRepeats)):
    for _each in list(_home.values()):
        if isinstance(_each, FunctionType) and _each.__module__ in (__name__, repeat.__name__):
            _keep_from_compiler(unwrap(_each).__code__)
