"""``save_for_backward`` of ``PyLayer`` under hooks, which Paddle gets wrong in C++.

There, a packed tuple is unpacked element by element and a packed list crashes; ``None`` reaches the hook, numbers and
arrays are refused and a list of tensors crashes, though all are legal without hooks; the saved tuple loses one
reference too many; and the result of ``unpack`` goes to the user as it is, so that a lost ``stop_gradient`` crashes
``recompute`` and silently ends second derivatives. Here it is done in Python, and C++ never sees a saved value.
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from inspect import getattr_static
from typing import Any
from weakref import ref

import paddle
from paddle import Tensor
from paddle.autograd.py_layer import PyLayer, PyLayerBackward, PyLayerContext

from tensorstash.backends.paddle.backward import Unrecorded, hook_failed
from tensorstash.backends.paddle.hooks import STACK
from tensorstash.backends.paddle.packed import Scope, call
from tensorstash.errors import TensorStashError

_SAVED = "_saved_by_tensorstash"


def repair() -> None:
    """Replace the methods of Paddle that know of saved tensors."""
    kinds: Any = PyLayerContext, PyLayer, PyLayerBackward
    context, layer, node = kinds
    save, replaced, native = (
        context.save_for_backward,
        getattr_static(layer, "apply"),
        getattr_static(node, "container"),
    )

    @wraps(save)
    def save_for_backward(ctx: PyLayerContext, *tensors: Any) -> None:
        if not STACK.is_registered:
            save(ctx, *tensors)
            return
        # On the instance, because backward reads it after the scope has ended.
        vars(ctx)[_SAVED] = tensors
        if call.contexts:
            call.contexts[-1] = ctx

    @classmethod  # type: ignore[misc]
    @wraps(layer.apply)
    def apply(cls: type[PyLayer], *args: Any, **kwargs: Any) -> Any:
        call.contexts.append(None)
        try:
            made = replaced.__get__(None, cls)(*args, **kwargs)
            ctx, scope = call.contexts[-1], STACK.current()
            if ctx is not None and scope is not None and scope.ready:
                # Not before: Paddle counts an input that forward returns as modified.
                vars(ctx)[_SAVED] = _each(Tensor, partial(_PackedTensor, scope), vars(ctx)[_SAVED])
            return made
        finally:
            call.contexts.pop()

    def container(ctx: PyLayerContext) -> Any:
        saved = vars(ctx)
        return _each(_PackedTensor, _PackedTensor.restore, saved[_SAVED]) if _SAVED in saved else native.__get__(ctx)

    context.save_for_backward, layer.apply = save_for_backward, apply
    node.container = property(container, native.__set__)  # which saved_tensor returns
    node.backward = property(partial(_once, node.backward))


def _once(function: Callable[..., Any], ctx: PyLayerContext) -> Callable[..., Any]:
    """Return a layer's backward, to be called once: Paddle leaks it if that raises, and must not leak its context."""
    calls = [partial(function, ctx)]

    def run(*gradients: Any) -> Any:
        try:
            return calls.pop()(*gradients)
        except TensorStashError as error:
            hook_failed(error)
            raise

    return run


def _each(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with all objects of a kind changed, inside tuples and lists, too."""
    if type(value) in (tuple, list):
        return type(value)(_each(kind, change, item) for item in value)
    return change(value) if isinstance(value, kind) else value


class _PackedTensor:
    """The hook's result for one tensor, and the tensor's place in the graph.

    That of an output leads to the layer's own node, which holds this. Backward ends the cycle. A graph that is dropped
    before backward is never freed, with or without hooks.
    """

    __slots__ = ("_history", "_origin", "_scope", "_value")

    def __init__(self, scope: Scope, tensor: Tensor) -> None:
        self._scope = scope
        self._origin = ref(tensor)
        self._history: Tensor = tensor._new_shared_tensor()
        self._history._set_impl(_nothing())
        scope.ready = False
        try:
            with Unrecorded():
                self._value = scope.pack(tensor)
        finally:
            scope.ready = True

    def restore(self) -> Tensor:
        """Return the tensor with its place in the graph."""
        try:
            with Unrecorded():
                tensor: Tensor = self._scope.unpack(self._value)
        except BaseException as error:
            hook_failed(error)
            raise
        origin, history = self._origin(), self._history
        if origin is not None and origin._is_shared_underline_tensor_with(tensor):
            return origin  # it was kept; a Parameter is one again
        if history.stop_gradient:
            return tensor.detach()
        placed: Tensor = history._new_shared_tensor()
        placed._set_impl(tensor)
        return placed


@cache
def _nothing() -> Tensor:
    return paddle.zeros([1])
