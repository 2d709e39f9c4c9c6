"""Operations with a derivative written by the user: Paddle's ``PyLayer``, which is PyTorch's ``Function``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorstash.reference.autograd.graph import Edge, Meta, Node
from tensorstash.reference.autograd.modes import is_grad_enabled, no_grad
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.creation import zeros
from tensorstash.reference.errors import InplaceError
from tensorstash.reference.tensor import Tensor


class PyLayerContext:
    """What ``forward`` leaves for ``backward``; takes any further attributes.

    A tensor kept as a plain attribute is not seen by hooks and not version-checked; use `save_for_backward`.
    """

    def __init__(self) -> None:
        self._to_save: tuple[Any, ...] = ()
        self._saved: tuple[Any, ...] = ()
        self._node: weakref.ref[Node[Tensor]] | None = None
        self._not_inplace: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize_grads = True
        self._casts_gradients = True
        self.needs_input_grad: tuple[bool, ...] = ()
        """Whether each tensor input wants a gradient."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Save inputs, outputs or intermediate tensors; hooks run when ``forward`` has returned.

        Call it at most once, in ``forward``.

        Args:
            tensors: tensors, None, and lists or tuples of these, which come back nested as they were.

        Raises:
            TypeError: something else was given.
        """
        for item in _leaves(tensors):
            if item is not None and not isinstance(item, Tensor):
                raise TypeError(
                    f"save_for_backward takes tensors, None, lists and tuples, got {type(item).__name__}; keep other "
                    "values as attributes of ctx"
                )
        self._to_save = tensors

    def saved_tensor(self) -> tuple[Any, ...]:
        """Give what was saved, unpacking it anew at each call; ``()`` if nothing was.

        Raises:
            GraphReleasedError: an earlier backward has freed it.
            InplaceError: a tensor was modified in place since.
        """
        if self._node is None:
            return self._to_save
        node = self._node()
        return tuple(_map(SavedTensor, lambda saved: saved.unpack(node), item) for item in self._saved)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """PyTorch's name for what `saved_tensor` gives."""
        return self.saved_tensor()

    def mark_not_inplace(self, *tensors: Tensor) -> None:
        """Say that inputs which ``forward`` returns are not results of an in-place operation.

        The output is then a new tensor over the same memory, and the input keeps its own history.
        """
        self._not_inplace = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say that outputs have no gradient; ``backward`` is given zeros for them."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether ``backward`` is given zeros (default) or None for outputs that no gradient reached."""
        self._materialize_grads = value

    def set_grad_in_dtype_consistent(self, flag: bool) -> None:
        """Choose whether gradients are cast to the type of their output before ``backward`` (default) or not."""
        self._casts_gradients = flag


class PyLayer:
    """An operation with its own derivative: subclass it and define two static methods.

    ``forward(ctx, *args, **kwargs)`` runs unrecorded and returns a tensor or a list or tuple that may hold some.
    ``backward(ctx, *gradients)`` is given one gradient per output tensor and returns one per input tensor, None for
    zero. Input tensors are those among the arguments and in lists and tuples of them. Written in differentiable
    operations, ``backward`` can be differentiated again.

    An input that ``forward`` returns counts as modified in place and takes the new history, as in Paddle, unless it
    is marked with `PyLayerContext.mark_not_inplace`.

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
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError("a PyLayer defines the static method forward(ctx, *args, **kwargs)")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Compute the gradient of each input tensor."""
        raise NotImplementedError("a PyLayer defines the static method backward(ctx, *gradients)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` and record it.

        Raises:
            InplaceError: ``forward`` returned, unmarked, an input that is a view or a leaf that requires grad.
        """
        inputs = [x for x in _leaves((*args, *kwargs.values())) if isinstance(x, Tensor)]
        ctx = PyLayerContext()
        ctx.needs_input_grad = tuple(x.requires_grad for x in inputs)
        recorded = is_grad_enabled() and any(ctx.needs_input_grad)
        with no_grad():
            result = cls.forward(ctx, *args, **kwargs)
        if not recorded:
            return result
        return _record(cls, ctx, inputs, result)


class PyLayerNode(Node[Tensor]):
    """A recorded `PyLayer` with its context."""

    __slots__ = ("_context", "_inputs", "_layer", "casts_gradients")

    def __init__(
        self, layer: type[PyLayer], context: PyLayerContext, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        super().__init__([x.edge for x in inputs], [x.meta for x in outputs])
        self._layer, self._context = layer, context
        self._inputs = tuple(x.meta for x in inputs)
        self.casts_gradients = context._casts_gradients

    @property
    def name(self) -> str:
        return self._layer.__name__

    def apply(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        if self._context._materialize_grads:
            gradients = [
                zeros(meta.shape, meta.dtype, meta.device) if g is None else g
                for g, meta in zip(gradients, self.outputs, strict=True)
            ]
        result = self._layer.backward(self._context, *gradients)
        found = list(_leaves(result if isinstance(result, list | tuple) else (result,)))
        if len(found) != len(self._inputs):
            raise ValueError(
                f"{self.name}.backward returned {len(found)} gradients for {len(self._inputs)} input tensors"
            )
        for position, (gradient, meta) in enumerate(zip(found, self._inputs, strict=True)):
            if gradient is not None:
                self._check(position, gradient, meta)
        return found

    def _check(self, position: int, gradient: Any, meta: Meta) -> None:
        got = f"{self.name}.backward returned for input {position}"
        if not isinstance(gradient, Tensor):
            raise TypeError(f"{got} a {type(gradient).__name__}; expected a tensor or None")
        if gradient.shape != meta.shape or gradient.device != meta.device:
            raise ValueError(
                f"{got} a gradient of shape {gradient.shape} on {gradient.device}; expected {meta.shape} on "
                f"{meta.device}"
            )

    def release(self) -> None:
        for saved in _leaves(self._context._saved):
            if isinstance(saved, SavedTensor):
                saved.release()


def _record(layer: type[PyLayer], ctx: PyLayerContext, inputs: Sequence[Tensor], result: Any) -> Any:
    returned = [x for x in _leaves(result) if isinstance(x, Tensor)]
    written = [x for x in returned if _among(x, inputs) and not _among(x, ctx._not_inplace)]
    for tensor in written:
        _refuse_inplace(layer, tensor)
        tensor.storage.counter.value += 1
    node = PyLayerNode(layer, ctx, inputs, returned)
    edges: dict[int, Edge[Tensor]] = {}
    for index, tensor in enumerate(returned):
        if tensor.dtype.is_differentiable and not _among(tensor, ctx._non_differentiable):
            edges.setdefault(id(tensor), Edge(node, index))

    def save(tensor: Tensor) -> SavedTensor:
        edge = edges.get(id(tensor))
        is_output = edge is not None and not _among(tensor, ctx._not_inplace)
        return SavedTensor(tensor, edge.output if edge is not None and is_output else None)

    def output(tensor: Tensor) -> Tensor:
        edge = edges.get(id(tensor))
        if _among(tensor, written) and edge is not None:
            tensor.set_history(edge)
            return tensor
        return _output(tensor, edge)

    ctx._saved = tuple(_map(Tensor, save, item) for item in ctx._to_save)
    ctx._node = weakref.ref(node)
    # The context lives as long as the node and must hold no tensor beyond what is saved.
    ctx._to_save = ctx._not_inplace = ctx._non_differentiable = ()
    return _map(Tensor, output, result)


def _output(tensor: Tensor, edge: Edge[Tensor] | None) -> Tensor:
    """Give what the user gets for a tensor that ``forward`` returned: its memory with the history of the node.

    The returned object itself stays without history, so whatever the context holds of it closes no cycle.
    """
    if tensor.requires_grad or tensor._untracked_view:
        output = tensor.view_of(tensor.layout, tracked=False)
    else:
        output = tensor.alias(None)
    output._edge = edge
    return output


def _refuse_inplace(layer: type[PyLayer], tensor: Tensor) -> None:
    if tensor._root is not None or tensor._untracked_view or (tensor.is_leaf and tensor.requires_grad):
        what = "a leaf that requires grad" if tensor.is_leaf else "a view"
        raise InplaceError(
            f"{layer.__name__}.forward returned its input, which counts as an in-place operation, but that is {what}; "
            "return a new tensor, or call ctx.mark_not_inplace on the input"
        )


def _among(tensor: Tensor, candidates: Sequence[Tensor]) -> bool:
    return any(tensor is candidate for candidate in candidates)


def _leaves(items: Any) -> Iterator[Any]:
    """Give what nested lists and tuples hold."""
    if isinstance(items, list | tuple):
        for item in items:
            yield from _leaves(item)
    else:
        yield items


def _map(kind: type, function: Callable[[Any], Any], item: Any) -> Any:
    """Apply `function` to every `kind` in nested lists and tuples."""
    if isinstance(item, list | tuple):
        return type(item)(_map(kind, function, x) for x in item)
    return function(item) if isinstance(item, kind) else item
