"""Operations with a derivative written by the user: Paddle's ``PyLayer``, which is PyTorch's ``Function``."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tensorstash.reference.autograd.graph import Meta, Node, is_grad_enabled, no_grad
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.errors import InplaceError
from tensorstash.reference.tensor import Tensor


class PyLayerContext:
    """The context from ``forward`` to ``backward``; takes any further attributes.

    A tensor kept as a plain attribute is not seen by hooks and not version-checked; use `save_for_backward`.
    """

    def __init__(self) -> None:
        self._to_save: tuple[Tensor, ...] = ()
        self._saved: tuple[SavedTensor, ...] = ()
        self._node: weakref.ref[Node[Tensor]] | None = None

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Save inputs, outputs or intermediate tensors; hooks run when ``forward`` has returned.

        Call it at most once, in ``forward``.

        Raises:
            TypeError: something else than tensors was given.
        """
        for item in tensors:
            if not isinstance(item, Tensor):
                raise TypeError(f"save_for_backward takes tensors, got {type(item).__name__}; set attributes of ctx")
        self._to_save = tensors

    def saved_tensor(self) -> tuple[Tensor, ...]:
        """Give the saved tensors, unpacking them anew at each call; ``()`` if nothing was.

        Raises:
            GraphReleasedError: an earlier backward has freed it.
            InplaceError: a tensor was modified in place since.
        """
        if self._node is None:
            return self._to_save
        node = self._node()
        return tuple(saved.unpack(node) for saved in self._saved)


class PyLayer:
    """An operation with its own derivative: subclass it and define two static methods.

    ``forward(ctx, *args)`` runs unrecorded and returns a new tensor. ``backward(ctx, gradient)`` returns one gradient
    per tensor among the arguments, None for zero. Written in differentiable operations, it can be differentiated again.

    >>> from tensorstash.reference import tensor
    >>> class Tanh(PyLayer):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         y = x.tanh()
    ...         ctx.save_for_backward(y)
    ...         return y
    ...     @staticmethod
    ...     def backward(ctx, dy):
    ...         (y,) = ctx.saved_tensor()
    ...         return dy * (1 - y * y)
    >>> x = tensor([0.5, 1.0], requires_grad=True)
    >>> Tanh.apply(x).sum().backward()
    >>> x.grad
    tensor([0.7864477 , 0.41997433], float32, cpu)
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Compute the output."""
        raise NotImplementedError("a PyLayer defines the static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Compute the gradient of each input tensor."""
        raise NotImplementedError("a PyLayer defines the static method backward(ctx, gradient)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record it.

        Raises:
            InplaceError: ``forward`` wrote to an input in place while gradients are recorded.
            ValueError: it returned an input.
        """
        inputs = [x for x in args if isinstance(x, Tensor)]
        versions = [x._version for x in inputs]
        ctx = PyLayerContext()
        with no_grad():
            result = cls.forward(ctx, *args)
        if not (is_grad_enabled() and any(x.requires_grad for x in inputs)):
            return result
        if versions != [x._version for x in inputs]:
            raise InplaceError(f"{cls.__name__}.forward wrote to its input in place; write to a clone() of it")
        if any(result is x for x in inputs):
            raise ValueError(f"{cls.__name__}.forward returned its input; return a clone() of it")
        return _record(cls, ctx, inputs, result)


class PyLayerNode(Node[Tensor]):
    """A recorded `PyLayer` with its context."""

    __slots__ = ("_context", "_inputs", "_layer")

    def __init__(self, layer: type[PyLayer], context: PyLayerContext, inputs: Sequence[Tensor]) -> None:
        super().__init__([x.node for x in inputs])
        self._layer, self._context = layer, context
        self._inputs = tuple(x.meta for x in inputs)

    @property
    def name(self) -> str:
        return self._layer.__name__

    def apply(self, gradient: Tensor) -> Sequence[Tensor | None]:
        found = self._layer.backward(self._context, gradient)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(self._inputs):
            raise ValueError(
                f"{self.name}.backward returned {len(found)} gradients for {len(self._inputs)} input tensors"
            )
        return [g if g is None else self._checked(k, g, self._inputs[k]) for k, g in enumerate(found)]

    def _checked(self, position: int, gradient: Any, meta: Meta) -> Tensor:
        got = f"{self.name}.backward returned for input {position}"
        if not isinstance(gradient, Tensor):
            raise TypeError(f"{got} a {type(gradient).__name__}; expected a tensor or None")
        if gradient.shape != meta.shape or gradient.device != meta.device:
            raise ValueError(
                f"{got} a gradient of shape {gradient.shape} on {gradient.device}; expected {meta.shape} on "
                f"{meta.device}"
            )
        return gradient.astype(meta.dtype)

    def release(self) -> None:
        for saved in self._context._saved:
            saved.release()


def _record(layer: type[PyLayer], ctx: PyLayerContext, inputs: Sequence[Tensor], result: Tensor) -> Tensor:
    node = PyLayerNode(layer, ctx, inputs)
    ctx._saved = tuple(SavedTensor(tensor, is_output=tensor is result) for tensor in ctx._to_save)
    ctx._node = weakref.ref(node)
    ctx._to_save = ()  # The context lives as long as the node and must hold no tensor but the saved ones.
    # The returned object itself stays without history, so whatever the context holds of it closes no cycle.
    return result.alias(node if result.dtype.is_differentiable else None)
