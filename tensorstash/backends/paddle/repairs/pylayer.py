"""``save_for_backward`` of ``PyLayer`` under hooks, which Paddle gets wrong in C++.

There, a packed tuple is unpacked element by element and a packed list crashes; ``None`` reaches the hook, numbers and
arrays are refused and a list of tensors crashes, though all are legal without hooks; the saved tuple loses one
reference too many; and the result of ``unpack`` goes to the user as it is, so that a lost ``stop_gradient`` crashes
``recompute`` and silently ends second derivatives. Here it is done in Python, and C++ never sees a saved value.
"""

import threading
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any
from weakref import ref

import paddle
from paddle import Tensor
from paddle.autograd.py_layer import PyLayer, PyLayerBackward, PyLayerContext

from tensorstash.backends.paddle.hooks import HookStack, without_recording
from tensorstash.backends.paddle.packed import Scope
from tensorstash.backends.paddle.repairs.backward import hook_failed, is_recording
from tensorstash.backends.paddle.repairs.patches import Patch
from tensorstash.backends.paddle.storage import same_memory
from tensorstash.errors import BackendError


def pylayer_patches(stack: HookStack) -> tuple[Patch, ...]:
    """Return the patches needed while hooks are in force or packed values alive."""
    forwards = _Forwards()

    def save(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def save_for_backward(ctx: PyLayerContext, *tensors: Any) -> None:
            if not stack.is_registered:
                return original(ctx, *tensors)
            scope = stack.current()
            if scope is None or not scope.ready:
                packed: Any = tensors
            else:
                packed = _packed(tensors, scope, forwards.running[-1] if forwards.running else [])
            # On the instance, because backward reads it after the scope has ended. It must not refer to ctx.
            ctx.saved_tensor = partial(_unpacked, packed)  # type: ignore[method-assign]
            return None

        return save_for_backward

    def apply(original: Any) -> Any:
        @classmethod  # type: ignore[misc]
        @wraps(original)
        def apply(cls: type[PyLayer], *args: Any, **kwargs: Any) -> Any:
            saved: list[_PackedTensor] = []
            forwards.running.append(saved)
            try:
                outputs = super(PyLayer, cls).apply(*args, **kwargs)  # type: ignore[no-untyped-call]
            except BaseException:
                for packed in saved:
                    packed.release()  # for Paddle leaks the context
                raise
            finally:
                forwards.running.pop()
            for packed in saved:
                packed.forward_returned(outputs)
            return _with_histories(outputs, saved)

        return apply

    def backward(original: Callable[..., Any]) -> Any:
        return property(partial(_Backward, original))

    return (
        Patch(PyLayerContext, "save_for_backward", save),
        Patch(PyLayer, "apply", apply),
        Patch(PyLayerBackward, "backward", backward),
    )


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


def _with_histories(outputs: Any, saved: "list[_PackedTensor]") -> Any:
    """Return a layer's result so that its graph holds the histories of those outputs that it has saved itself."""
    own = [packed for packed in saved if packed.saved_output() is not None]
    if not own:
        return outputs

    def placed(output: Any) -> Any:
        packed_of = [packed for packed in own if packed.saved_output() is output]
        if not packed_of:
            return output
        behind = _Output(output)
        returned = _Behind.apply(behind.history, behind)  # type: ignore[no-untyped-call]
        for packed in packed_of:
            packed.returned_as(returned, behind)
        return returned

    if isinstance(outputs, (tuple, list)):
        return type(outputs)(placed(output) for output in outputs)
    return placed(outputs)


class _Output:
    """An output of a layer, and its place in the graph; opaque to ``PyLayer``, which would take tensors for inputs."""

    __slots__ = ("__weakref__", "history", "view")

    def __init__(self, output: Tensor) -> None:
        self.history = _history_of(output)
        self.view: Tensor | None = same_memory(output.detach())

    def take(self) -> Tensor | None:
        """Return a view of the output, once."""
        view, self.view = self.view, None
        return view


class _Behind(PyLayer):
    """Stands behind a layer that saved its own output, and owns the history of that output.

    The layer itself must not: its history leads to its own node. Later nodes may, since they live as
    long as anything from which a second derivative could come.
    """

    @staticmethod
    def forward(ctx: Any, history: Tensor, output: _Output) -> Any:
        # Not the output itself as an argument: memory shared with an argument is in place to Paddle.
        ctx.output = output
        return output.take()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _PackedTensor:
    """The hook's result for one tensor, and the tensor's place in the graph."""

    __slots__ = ("_behind", "_history", "_is_constant", "_is_output", "_origin", "_scope", "_value")

    def __init__(self, tensor: Tensor, scope: Scope) -> None:
        self._scope: Scope | None = scope
        self._origin = ref(tensor)
        self._history = None if tensor.stop_gradient else _history_of(tensor)
        self._is_constant = self._is_output = False
        self._behind: ref[_Output] | None = None
        scope.ready = False
        try:
            self._value = without_recording(scope.pack, tensor)
        finally:
            scope.ready = True

    def forward_returned(self, outputs: Any) -> None:
        """Learn the result of the layer's forward.

        The history of an output leads to the layer's own node, which holds this: a cycle that nothing could free.
        Without hooks Paddle makes it, and a graph that is dropped before backward leaks.
        """
        origin = self._origin()
        returned = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        self._is_output = origin is not None and any(output is origin for output in returned)
        if self._is_output:
            self._history = None
        else:
            self._is_constant = self._history is None

    def saved_output(self) -> Tensor | None:
        """Return the tensor if it is an output of the layer, and derivatives are to go through it."""
        origin = self._origin()
        if not self._is_output or origin is None or origin.stop_gradient:
            return None
        return origin if not origin.is_dist() and origin.is_dense() and origin._is_initialized() else None

    def returned_as(self, output: Tensor, behind: _Output) -> None:
        """Learn which tensor the user has got for the output, and where its history is once that is gone.

        As long as the tensor lives, derivatives go through that: there they are summed as without hooks.
        """
        self._origin = ref(output)
        self._behind = ref(behind)

    def restore(self) -> Tensor:
        """Return the tensor with its place in the graph."""
        try:
            if self._scope is None:
                raise BackendError("a saved tensor was asked for after the layer's forward had failed")
            return self._placed(without_recording(self._scope.unpack, self._value))
        except BaseException as error:
            hook_failed(error)
            raise

    def _placed(self, tensor: Tensor) -> Tensor:
        origin: Tensor | None = self._origin()
        if origin is not None and origin._is_shared_underline_tensor_with(tensor):
            return origin  # it was kept; a Parameter is one again
        history = self._history
        if history is None and origin is not None and not origin.stop_gradient:
            history = _history_of(origin)
        behind = self._behind() if self._behind is not None else None
        if history is None and behind is not None:
            history = behind.history
        if history is not None:
            placed: Tensor = history._new_shared_tensor()
            placed._set_impl(tensor)
            return placed
        placed = tensor.detach()
        if origin is None and not self._is_constant:
            # Probably an output; where `apply` was taken from the class before, nobody has said so.
            if is_recording():
                raise BackendError(
                    "a PyLayer saved a tensor that its forward made, and second derivatives are asked for that may "
                    "go through it, but the tensor itself is gone; keep a reference to the layer's result until "
                    "backward, or save an input instead"
                )
            placed.stop_gradient = False
        return placed

    def release(self) -> None:
        """Drop the hook's result."""
        self._scope = self._value = self._history = None


def _history_of(tensor: Tensor) -> Tensor:
    """Return a tensor that shares the autograd meta of another, but none of its memory."""
    history: Tensor = tensor._new_shared_tensor()
    history._set_impl(_nothing())
    return history


@cache
def _nothing() -> Tensor:
    return paddle.zeros([1])
