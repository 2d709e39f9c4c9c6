"""``save_for_backward`` of ``PyLayer`` under hooks, which Paddle gets wrong in C++.

There, a packed tuple is unpacked element by element and a packed list crashes; ``None`` reaches the hook, numbers and
arrays are refused and a list of tensors crashes, though all are legal without hooks; the saved tuple loses one
reference too many; and the result of ``unpack`` goes to the user as it is, so that a lost ``stop_gradient`` crashes
``recompute`` and silently ends second derivatives. Here it is done in Python, and C++ never sees a saved value.
"""

import threading
from collections.abc import Callable
from functools import cache, partial, wraps
from inspect import getattr_static
from typing import Any
from weakref import ref

import paddle
from paddle import Tensor
from paddle.autograd.py_layer import PyLayer, PyLayerBackward, PyLayerContext

from tensorstash.backends.paddle.hooks import HookStack
from tensorstash.backends.paddle.packed import Scope
from tensorstash.backends.paddle.repairs.backward import Unrecorded, hook_failed
from tensorstash.errors import BackendError

_SAVED = "_saved_by_tensorstash"


def repair(stack: HookStack) -> None:
    """Replace the methods of Paddle that know of saved tensors."""
    forwards = _Forwards()
    context: Any = PyLayerContext
    layer: Any = PyLayer
    node: Any = PyLayerBackward
    save, replaced = context.save_for_backward, getattr_static(layer, "apply")

    @wraps(save)
    def save_for_backward(ctx: PyLayerContext, *tensors: Any) -> None:
        if not stack.is_registered:
            save(ctx, *tensors)
            return
        scope = stack.current()
        if scope is None or not scope.ready:
            packed: Any = tensors
        else:
            packed = _packed(tensors, scope, forwards.running[-1] if forwards.running else [])
        # On the instance, because backward reads it after the scope has ended. It must not refer to ctx.
        vars(ctx)[_SAVED] = packed

    native = getattr_static(node, "container")

    def container(ctx: PyLayerContext) -> Any:
        saved = vars(ctx)
        return _unpacked(saved[_SAVED]) if _SAVED in saved else native.__get__(ctx)

    @classmethod  # type: ignore[misc]
    @wraps(layer.apply)
    def apply(cls: type[PyLayer], *args: Any, **kwargs: Any) -> Any:
        saved: list[_PackedTensor] = []
        forwards.running.append(saved)
        try:
            made = replaced.__get__(None, cls)(*args, **kwargs)
            for packed in saved:
                packed.renew()
            return made
        except BaseException:
            for packed in saved:
                packed.release()  # for Paddle leaks the context
            raise
        finally:
            forwards.running.pop()

    context.save_for_backward, layer.apply = save_for_backward, apply
    node.container = property(container, native.__set__)  # which saved_tensor returns
    node.backward = property(partial(_Backward, node.backward))


class _Backward:
    """A layer's backward, to be called once: Paddle leaks the function if that raises, and must not leak its context.

    Args:
        function: takes the context.
        ctx: the context.
    """

    __slots__ = ("_call",)

    def __init__(self, function: Callable[..., Any], ctx: PyLayerContext) -> None:
        self._call: Callable[..., Any] | None = partial(function, ctx)

    def __call__(self, *gradients: Any) -> Any:
        call, self._call = self._call, None
        assert call is not None, "a layer's backward was called again"
        return call(*gradients)


class _Forwards(threading.local):
    """Saved tensors of each ``PyLayer.apply`` that is under way on this thread."""

    def __init__(self) -> None:
        self.running: list[list[_PackedTensor]] = []


def _packed(value: Any, scope: Scope, saved: "list[_PackedTensor]") -> Any:
    if isinstance(value, Tensor):
        saved.append(_PackedTensor(value, scope))
        return saved[-1]
    if type(value) in (tuple, list):
        return type(value)(_packed(item, scope, saved) for item in value)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, _PackedTensor):
        return value.restore()
    if type(value) in (tuple, list):
        return type(value)(_unpacked(item) for item in value)
    return value


class _PackedTensor:
    """The hook's result for one tensor, and the tensor's place in the graph.

    That of an output leads to the layer's own node, which holds this. Backward ends the cycle. A graph that is dropped
    before backward is never freed, with or without hooks.
    """

    __slots__ = ("_history", "_origin", "_scope", "_value", "_version")

    def __init__(self, tensor: Tensor, scope: Scope) -> None:
        self._scope: Scope | None = scope
        self._origin = ref(tensor)
        self._history: Tensor | None = tensor._new_shared_tensor()  # of an output, too, which has no history yet
        self._history._set_impl(_nothing())
        self._pack(tensor, scope)

    def renew(self) -> None:
        """Save the tensor again if its version is another: Paddle counts an input that forward returns as modified."""
        tensor, scope = self._origin(), self._scope
        if tensor is None or scope is None or scope.pack is None:
            return
        if tensor.inplace_version != self._version:
            self._pack(tensor, scope)

    def _pack(self, tensor: Tensor, scope: Scope) -> None:
        self._version = tensor.inplace_version
        scope.ready = False
        try:
            with Unrecorded():
                self._value = scope.pack(tensor)
        finally:
            scope.ready = True

    def restore(self) -> Tensor:
        """Return the tensor with its place in the graph."""
        try:
            if self._scope is None:
                raise BackendError("a saved tensor was asked for after the layer's forward had failed")
            with Unrecorded():
                tensor = self._scope.unpack(self._value)
            return self._placed(tensor)
        except BaseException as error:
            hook_failed(error)
            raise

    def _placed(self, tensor: Tensor) -> Tensor:
        origin, history = self._origin(), self._history
        if origin is not None and origin._is_shared_underline_tensor_with(tensor):
            return origin  # it was kept; a Parameter is one again
        if history is None or history.stop_gradient:
            return tensor.detach()
        placed: Tensor = history._new_shared_tensor()
        placed._set_impl(tensor)
        return placed

    def release(self) -> None:
        """Drop the hook's result."""
        self._scope = self._value = self._history = None


@cache
def _nothing() -> Tensor:
    return paddle.zeros([1])
