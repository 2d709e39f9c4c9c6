"""The adapter of the reference engine: the contract at its plainest."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any, ClassVar
from weakref import ref

from tensorstash.backends.forward import LEFT_OVER, raise_or_note, replace_method
from tensorstash.backends.reference.devices import DeviceKernels, DeviceLayouts, DeviceStreams, elements, laid_out
from tensorstash.backends.reference.producers import Producers
from tensorstash.errors import BackendError
from tensorstash.host.arrays import Array, borrowed
from tensorstash.protocols import Undo
from tensorstash.reference import HookError, Parameter, Tensor, is_grad_enabled, saved_tensors_hooks, streams
from tensorstash.reference.autograd.graph import hook_stack
from tensorstash.reference.nn import Module
from tensorstash.spec import ALIGNMENT, TensorSpec


class HookScope(saved_tensors_hooks):
    """See :meth:`tensorstash.abilities.Backend.hooks`."""

    def __init__(self, pack: Any, unpack: Any, /, *, trusted: bool = False) -> None:
        super().__init__(pack, unpack)

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        except HookError as wrong:
            raise BackendError(str(wrong)) from wrong


class ReferenceBackend:
    """Tensors and modules of ``tensorstash.reference``, in host memory and on the simulated accelerators.

    See :class:`tensorstash.abilities.Backend`.
    """

    name: ClassVar[str] = "reference"
    backward_writes: ClassVar[bool] = False
    hooks = HookScope
    kernels = DeviceKernels()
    layouts = DeviceLayouts()
    streams = DeviceStreams()
    producers = Producers
    nbytes = most_bytes = staticmethod(attrgetter("nbytes"))
    version = staticmethod(attrgetter("_version"))
    detached = staticmethod(Tensor.detach)
    version_probe = staticmethod(Tensor.version_probe)
    is_recording = staticmethod(is_grad_enabled)

    def owns(self, obj: object, /) -> bool:
        return isinstance(obj, Tensor | Module)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        stack = hook_stack()
        outer = stack[:]
        stack.clear()
        try:
            yield
        finally:
            is_left_over = bool(stack)
            stack[:] = outer
        if is_left_over:
            raise_or_note(LEFT_OVER, None)

    def keep_reason(self, tensor: Tensor, /) -> str | None:
        if type(tensor) is not Tensor:
            return "parameter" if isinstance(tensor, Parameter) else "subclass"
        base = tensor.base
        if isinstance(base, Parameter):
            return "view of a parameter"
        if base is not None and base.is_leaf and base.requires_grad:
            return "view of a leaf that requires grad"
        if tensor.requires_grad and tensor.is_leaf:
            return "leaf that requires grad"
        return None

    def spec(self, tensor: Tensor, /) -> TensorSpec:
        layout = tensor.shape, tensor.strides, tensor.offset, tensor.dtype.name, tensor.device
        return TensorSpec(*layout, alignment=tensor.data_ptr() % ALIGNMENT)

    def describe(self, tensor: Tensor, /) -> str:
        return f"{tensor.dtype.name}{tensor.shape} on {tensor.device}"

    def storage(self, tensor: Tensor, /) -> tuple[Hashable, int]:
        """Return a weak reference of the live storage, equal to itself alone, and the lowest element's byte offset."""
        return ref(tensor.storage), tensor.layout.begin

    def producer(self, tensor: Tensor, /) -> str:
        return "" if tensor.grad_fn is None else type(tensor.grad_fn).__name__

    def alias(self, tensor: Tensor, /) -> Tensor:
        return tensor if tensor.is_leaf else tensor.detach()

    def to_host(self, tensor: Tensor, spec: TensorSpec, /) -> Array:
        if tensor.device != "cpu":
            streams.current_stream(tensor.device).synchronize()
        run = elements(tensor, spec)
        return borrowed(run) if spec.order.is_dense and tensor.device == "cpu" else run.copy()

    def from_host(self, data: Array, spec: TensorSpec, /) -> Tensor:
        return laid_out(data if spec.device == "cpu" else data.copy(), spec)

    def named_modules(self, model: object, /) -> Iterable[tuple[str, object]]:
        if not isinstance(model, Module):
            raise TypeError(f"got a {type(model).__qualname__}, expected a module of tensorstash.reference.nn")
        return model.named_modules()

    def wrap_forward(self, model: object, scope: Callable[[], AbstractContextManager[Any]], /) -> Undo:
        return replace_method(model, scope)
