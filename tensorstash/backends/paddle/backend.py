"""The adapter of PaddlePaddle."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any, ClassVar

from paddle import Tensor, is_grad_enabled
from paddle.nn import Layer

from tensorstash.backends.paddle import operations
from tensorstash.backends.paddle.calls import scope_calls
from tensorstash.backends.paddle.checkpoints import PaddleRepeats
from tensorstash.backends.paddle.eligibility import Parameters
from tensorstash.backends.paddle.hooks import HookScope, HookStack
from tensorstash.backends.paddle.layout import elements, place_name, rebuilt, spec_of
from tensorstash.backends.paddle.nodes import node_of
from tensorstash.backends.paddle.packed import Settings
from tensorstash.backends.paddle.readers import demand
from tensorstash.backends.paddle.recipes.producers import Producers
from tensorstash.backends.paddle.repairs import backward, foreign_hooks, pylayer
from tensorstash.backends.paddle.repairs.autocast import without_autocast
from tensorstash.backends.paddle.repairs.foreign_hooks import checked
from tensorstash.backends.paddle.storage import token_of, version_probe
from tensorstash.protocols import Demand, Undo

# Paddle has one pair of hooks per process, so there is one stack over it, however many backends are made.
_STACK = HookStack()

backward.repair()
for _each in (pylayer, foreign_hooks, operations):
    _each.repair(_STACK)

# Parameters are the process's, too.
_PARAMETERS = Parameters(lambda: _STACK.entries)
_PARAMETERS.repair()


class PaddleBackend:
    """PaddlePaddle tensors and layers, on the CPU and on devices. Thread-safe.

    Hooks here nest, belong to a thread, and keep the in-place check; see the modules beside this one for Paddle's
    faults and their repairs. A few functions of Paddle are replaced by ones that call them, and that do nothing else
    where no hooks are in force.

    Copies to and from devices make the program wait. They were tried on a simulated device, never on a GPU.

    An exception of ``pack`` inside an operation is raised when the scope ends, and nothing more is packed until then.

    Faults that cannot be helped, in Paddle 3.3.1 and without any hooks, too: backward twice through a ``PyLayer`` with
    ``retain_graph=True`` is a segmentation fault, since the first one frees the layer's context; the context of a
    layer whose forward raises is leaked, with its saved tensors; the graph of a ``PyLayer`` that saves its own
    output is freed by backward alone; ``paddle.grad`` never releases its graph; and entering the first scope, or
    leaving the last, while another thread runs operations is a race inside Paddle.
    """

    name: ClassVar[str] = "paddle"
    backward_writes: ClassVar[bool] = True  # softmax_with_cross_entropy makes its gradient in the saved softmax

    spec = staticmethod(spec_of)
    to_host = staticmethod(elements)
    from_host = staticmethod(rebuilt)
    version_probe = staticmethod(version_probe)
    repeats = PaddleRepeats()
    is_recording = staticmethod(is_grad_enabled)

    def __init__(self) -> None:
        # Called for every saved tensor, so without a frame of Python in between.
        self.keep_reason = _PARAMETERS.keep_reason
        self.version: Callable[[Tensor], int] = Tensor._inplace_version  # type: ignore[attr-defined]
        self.most_bytes: Callable[[Tensor], int] = Tensor._holder_size  # type: ignore[attr-defined]
        self.detached: Callable[[Tensor], Tensor] = Tensor.detach
        # Paddle copies in the stream of the computation alone, which belongs to all threads: copies of devices wait.
        self.kernels = self.streams = self.layouts = None

    def owns(self, obj: object, /) -> bool:
        return isinstance(obj, (Tensor, Layer))

    def hooks(
        self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], /, *, trusted: bool = False
    ) -> AbstractContextManager[None]:
        """See :class:`~tensorstash.backends.paddle.hooks.HookScope`.

        The result of ``unpack`` is checked, and copied where Paddle would misread its layout, unless the
        pair is trusted to return results of :meth:`alias` and :meth:`from_host`.
        """
        if not trusted:
            pack, unpack = checked(pack, unpack)
        return HookScope(_STACK, without_autocast(pack), without_autocast(unpack), private=trusted)

    def suspended(self) -> AbstractContextManager[None]:
        return HookScope(_STACK)

    def nbytes(self, tensor: Tensor, /) -> int:
        return prod(tensor.shape) * tensor.element_size()

    def describe(self, tensor: Tensor, /) -> str:
        shape = tuple(tensor.shape)
        place = place_name(tensor.place) if tensor._is_initialized() else "no place"
        return f"{str(tensor.dtype).removeprefix('paddle.')}{shape} on {place}"

    def storage(self, tensor: Tensor, /) -> tuple[Hashable, int]:
        """Return a token of the live storage and the byte offset of the lowest element in it.

        Tokens are equal only for storages saved one soon after the other in one scope; see
        :func:`~tensorstash.backends.paddle.storage.token_of`.
        """
        scope = _STACK.current()
        spec = self.spec(tensor)
        start = spec.order.lowest(spec)
        return (object() if scope is None else token_of(tensor, scope.recent)), start

    def demand(self, tensor: Tensor, /) -> Demand:
        scope = _STACK.current()
        return demand(tensor, None if scope is None else scope.call)

    def producer(self, tensor: Tensor, /) -> str:
        node = None if tensor.is_leaf else node_of(tensor)
        return "" if node is None else node.name()

    def producers(self, is_ours: Callable[[object], bool], rules: Sequence[Any], /) -> Producers:
        """Return the producers that make tensors again, for one session; ``rules`` are like those of this package."""
        return Producers(is_ours, rules, _PARAMETERS, _settings)

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
        _PARAMETERS.register(model.parameters())
        return scope_calls(model, scope)


def _settings() -> Mapping[int, Settings]:
    scope = _STACK.current()
    return {} if scope is None else scope.settings
