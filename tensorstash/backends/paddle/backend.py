"""The adapter of PaddlePaddle."""

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from math import prod
from typing import Any, ClassVar

from paddle import Tensor, is_grad_enabled
from paddle.nn import Layer

from tensorstash.backends.paddle import backward, hooks, operations, pylayer
from tensorstash.backends.paddle.calls import scope_calls
from tensorstash.backends.paddle.checkpoints import PaddleRepeats
from tensorstash.backends.paddle.eligibility import PARAMETERS
from tensorstash.backends.paddle.hooks import STACK, HookScope
from tensorstash.backends.paddle.layout import described, elements, rebuilt, spec_of, version_probe
from tensorstash.backends.paddle.nodes import demand, node_of
from tensorstash.backends.paddle.recipes import Producers
from tensorstash.protocols import Undo

for _each in (backward, hooks, pylayer, operations, PARAMETERS):
    _each.repair()


class PaddleBackend:
    """PaddlePaddle tensors and layers, on the CPU and on devices. Thread-safe.

    Hooks here nest, belong to a thread, and keep the in-place check. The modules beside this one repair Paddle's
    faults: they replace a few functions by ones that do nothing else where no hooks are in force. An exception of
    ``pack`` is raised when the scope ends. Copies to and from devices make the program wait; no GPU was tried.

    Faults that cannot be helped, in Paddle 3.3.1 and without any hooks, too: backward twice through a ``PyLayer`` with
    ``retain_graph=True`` is a segmentation fault, since the first one frees the layer's context; the context of a
    layer whose forward raises is leaked, with its saved tensors; the graph of a ``PyLayer`` that saves its own
    output is freed by backward alone; ``paddle.grad`` never releases its graph; and entering the first scope, or
    leaving the last, while another thread runs operations is a race inside Paddle.
    """

    name: ClassVar[str] = "paddle"
    backward_writes: ClassVar[bool] = True  # softmax_with_cross_entropy makes its gradient in the saved softmax

    spec = staticmethod(spec_of)
    demand = staticmethod(demand)
    describe = staticmethod(described)
    to_host = staticmethod(elements)
    from_host = staticmethod(rebuilt)
    version_probe = staticmethod(version_probe)
    is_recording = staticmethod(is_grad_enabled)
    hooks = suspended = HookScope
    producers = Producers
    repeats = PaddleRepeats()

    def __init__(self) -> None:
        # Called for every saved tensor, so without a frame of Python in between.
        self.keep_reason = PARAMETERS.keep_reason
        self.version: Callable[[Tensor], int] = Tensor._inplace_version  # type: ignore[attr-defined]
        self.most_bytes: Callable[[Tensor], int] = Tensor._holder_size  # type: ignore[attr-defined]
        self.detached: Callable[[Tensor], Tensor] = Tensor.detach
        # Paddle copies in the stream of the computation alone, which belongs to all threads: copies of devices wait.
        self.kernels = self.streams = self.layouts = None

    def owns(self, obj: object, /) -> bool:
        return isinstance(obj, (Tensor, Layer))

    def nbytes(self, tensor: Tensor, /) -> int:
        return prod(tensor.shape) * tensor.element_size()

    def storage(self, tensor: Tensor, /) -> tuple[Hashable, int]:
        scope, spec = STACK.current(), self.spec(tensor)
        return (object() if scope is None else scope.token(tensor)), spec.order.lowest(spec)

    def producer(self, tensor: Tensor, /) -> str:
        node = None if tensor.is_leaf else node_of(tensor)
        return "" if node is None else node.name()

    def alias(self, tensor: Tensor, /) -> Tensor:
        """Return a leaf that requires grad itself, else a detached alias of the tensor's memory and version.

        Other leaves may yet become outputs of a ``PyLayer``; the graph would then hold its own output.
        """
        return tensor if tensor.is_leaf and not tensor.stop_gradient else tensor.detach()

    def named_modules(self, model: object, /) -> Iterable[tuple[str, object]]:
        if not isinstance(model, Layer):
            raise TypeError(f"got a {type(model).__qualname__}, expected a paddle.nn.Layer")
        layers: Iterable[tuple[str, object]] = model.named_sublayers(include_self=True)
        return layers

    def wrap_forward(self, model: Any, scope: Callable[[], AbstractContextManager[Any]], /) -> Undo:
        PARAMETERS.register(model.parameters())
        return scope_calls(model, scope)
