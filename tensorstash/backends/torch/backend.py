"""The adapter of PyTorch."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from operator import attrgetter
from sys import getrefcount
from typing import Any, ClassVar

import torch
from torch import Size, Tensor, UntypedStorage
from torch._C import (
    DisableTorchFunction,
    _DisableTorchDispatch,
    _dispatch_keys,
    _is_tracing,
    _len_torch_dispatch_stack,
    _storage_Use_Count,
)
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch.nn import Module, Parameter

from tensorstash.abilities import Kernels, Layouts
from tensorstash.backends.forward import is_called_by
from tensorstash.backends.torch import kernels, layout
from tensorstash.backends.torch.calls import can_imagine, imagining, scope_calls
from tensorstash.backends.torch.checkpoints import TorchRepeats
from tensorstash.backends.torch.eligibility import dispatch_reason, is_tracing, subclass_reason
from tensorstash.backends.torch.hooks import HookScope, Suspended
from tensorstash.backends.torch.layout import DTYPE_NAMES, elements, placed, rebuilt, relaid
from tensorstash.backends.torch.readers import Readers, demand, running, running_compiled
from tensorstash.backends.torch.recipes.producers import Producers
from tensorstash.backends.torch.streams import DeviceStreams, free_bytes
from tensorstash.protocols import Demand, Undo, strictest
from tensorstash.spec import ALIGNMENT, TensorSpec


class TorchBackend:
    """PyTorch tensors and modules, on the CPU and on every accelerator of PyTorch. Thread-safe.

    A fault that it cannot help: ``F.rrelu(training=True)`` saves a buffer before the kernel fills it, so that every
    hook that copies gets undefined values (pytorch#193671); ``torch.func.grad`` and relatives run only where hooks are
    suspended.
    """

    name: ClassVar[str] = "torch"
    backward_writes: ClassVar[bool] = False

    hooks = HookScope
    suspended = Suspended
    readers = Readers
    repeats = TorchRepeats()
    producers = Producers
    to_host = staticmethod(elements)
    from_host = staticmethod(rebuilt)
    place = staticmethod(placed)
    relaid = staticmethod(relaid)
    free_bytes = staticmethod(free_bytes)
    can_imagine = staticmethod(can_imagine)
    imagining = staticmethod(imagining)
    compiled_graph = staticmethod(running_compiled)
    is_recording = staticmethod(torch.is_grad_enabled)
    keeps_graph = staticmethod(_get_current_graph_task_keep_graph)
    version = staticmethod(attrgetter("_version"))
    nbytes = most_bytes = staticmethod(attrgetter("nbytes"))

    def __init__(self) -> None:
        self.kernels: Kernels[Tensor] | None = kernels
        self.layouts: Layouts[Tensor] | None = layout
        self.streams = DeviceStreams()
        # Whether a storage owns the object that stands for it in Python differs by version.
        self._own_holders = 0
        self._own_holders = self.holders([torch.empty(1)])[0] - 1

    def owns(self, obj: object, /) -> bool:
        return isinstance(obj, (Tensor, Module))

    def keep_reason(self, tensor: Tensor, /) -> str | None:
        kind = type(tensor)
        if kind is not Tensor:
            return "parameter" if kind is Parameter else subclass_reason(tensor)
        base = tensor._base
        if base is not None:
            # Linear saves weight.t(); FSDP saves views of its flat parameter. The memory of both outlives the graph.
            kind = type(base)
            if kind is Parameter or (kind is not Tensor and isinstance(base, Parameter)):
                return "view of a parameter"
            if base.requires_grad and base.is_leaf:
                return "view of a leaf that requires grad"
        if tensor.requires_grad and tensor.is_leaf:
            return "leaf that requires grad"
        if (_len_torch_dispatch_stack() or _is_tracing()) and is_tracing():
            return "tracing"
        if tensor.dtype not in DTYPE_NAMES:
            return "quantized" if tensor.is_quantized else "dtype"
        reason = dispatch_reason(_dispatch_keys(tensor).raw_repr())
        if reason is None:
            # NumPy, another process, a file: PyTorch does not know who else holds the memory.
            storage = tensor.untyped_storage()
            if not storage.resizable() or (tensor.is_cpu and storage.is_shared()):
                return "memory of another library"
        return reason

    def spec(self, tensor: Tensor, /) -> TensorSpec:
        """Return the spec; tensors of one layout get one object."""
        return _spec(
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
            tensor.device,
            tensor.data_ptr() % ALIGNMENT,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def describe(self, tensor: Tensor, /) -> str:
        prefix = "" if type(tensor) in (Tensor, Parameter) else f"{type(tensor).__qualname__} "
        shape = "(nested)" if tensor.is_nested else tuple(tensor.shape)
        return f"{prefix}{str(tensor.dtype).removeprefix('torch.')}{shape} on {tensor.device}"

    def storage(self, tensor: Tensor, /) -> tuple[Hashable, int]:
        """Return a weak reference of the live storage and the byte offset of the first element in it.

        The weak reference keeps the address of the storage object, though not its memory, from being used again.
        """
        token: Any = tensor.untyped_storage()._weak_ref()
        return _StorageToken(token), int(tensor.storage_offset()) * tensor.itemsize

    def holders(self, tensors: Sequence[Tensor], /) -> list[int]:
        counts: list[int] = []
        with DisableTorchFunction():  # no operation of the user's program
            for tensor in tensors:
                storage = tensor.untyped_storage()
                counts.append(_storage_Use_Count(storage._cdata) + getrefcount(storage) - self._own_holders)
        return counts

    def running_demand(self, handle: object, /) -> Demand | None:
        return strictest(demand(reader) for reader in running(handle))

    def may_write(self) -> bool:
        """Whether the operation whose backward runs on this thread, if any, is none of PyTorch's own."""
        node = torch._C._current_autograd_node()
        return node is not None and (type(node).__module__ != "builtins" or type(node).__name__ == "CppFunction")

    def is_compiling(self) -> bool:
        # Other contexts of the compiler switch it off, as checkpoints do.
        return is_called_by("torch._dynamo.eval_frame", "_TorchDynamoContext")

    def producer(self, tensor: Tensor, /) -> str:
        node = tensor.grad_fn
        return "" if node is None else type(node).__name__

    def is_there(self, tensor: Tensor, spec: TensorSpec, /) -> bool:
        """Whether the storage is as large as the tensor needs it: FSDP and others free it for a while."""
        with DisableTorchFunction():
            nbytes: int = tensor.untyped_storage().nbytes()
        return spec.offset + spec.order.span * spec.itemsize <= nbytes

    def alias(self, tensor: Tensor, /) -> Tensor:
        """Return a leaf itself, else a detached alias: the graph holding its own output would be a cycle for ever."""
        if tensor.is_leaf:
            return tensor
        return self.detached(tensor) if _len_torch_dispatch_stack() else tensor.detach()

    def detached(self, tensor: Tensor, /) -> Tensor:
        if _len_torch_dispatch_stack() and not is_tracing():
            with _DisableTorchDispatch():  # it is no operation of the user's program
                return tensor.detach()
        return tensor.detach()

    def version_probe(self, tensor: Tensor, /) -> Tensor:
        """Return an empty tensor that shares the version counter of ``tensor``: ``.data`` changes memory alone."""
        with DisableTorchFunction(), _DisableTorchDispatch():
            probe = tensor.detach()
            # Not every device takes memory for one that differs in a lazy flag.
            probe.data = _bare(tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())
            return probe

    def outline(self, tensor: Tensor, /) -> tuple[tuple[int, ...], str, str]:
        return tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], str(tensor.device)

    def named_modules(self, model: object, /) -> Iterable[tuple[str, object]]:
        if not isinstance(model, Module):
            raise TypeError(f"got a {type(model).__qualname__}, expected a torch.nn.Module")
        modules: Iterable[tuple[str, object]] = model.named_modules()
        return modules

    def wrap_forward(self, model: Any, scope: Callable[[], AbstractContextManager[Any]], /) -> Undo:
        return scope_calls(model, scope)


class _StorageToken(int):
    """A weak reference of a storage, as the number that PyTorch names it by; hashed and compared without Python."""

    __slots__ = ()

    _free: Callable[[int], None] = staticmethod(UntypedStorage._free_weak_ref)  # there also while the process ends

    def __del__(self) -> None:
        self._free(self)


@cache
def _bare(dtype: torch.dtype, device: torch.device, conj: bool, neg: bool) -> Tensor:
    # By way of bytes: PyTorch warns of every tensor that is made as complex32.
    bare = torch.empty(0, dtype=torch.uint8, device=device).view(dtype)
    bare = bare.conj() if conj else bare
    return torch._neg_view(bare) if neg else bare


@lru_cache(4096)
def _spec(
    shape: Size, strides: tuple[int, ...], offset: int, dtype: torch.dtype, device: torch.device, *rest: Any
) -> TensorSpec:
    return TensorSpec(tuple(shape), strides, offset * dtype.itemsize, DTYPE_NAMES[dtype], str(device), *rest)
