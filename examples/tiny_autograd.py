"""An autograd in NumPy, as small as it gets, with the seam that tensorstash needs: hooks around what is saved."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Version:
    """How often an array was written to in place."""

    count = 0


class Memory:
    """An array and its version; tensors share it."""

    def __init__(self, array: np.ndarray, version: Version | None = None) -> None:
        self.array = array
        self.version = version or Version()


class Tensor:
    """A value, and the operation that made it. One without an operation is a leaf, where gradients arrive."""

    def __init__(self, memory: Memory, operation: "Operation | None" = None) -> None:
        self.memory = memory
        self.operation = operation
        self.grad: np.ndarray | float = 0.0

    def __mul__(self, other: "Tensor") -> "Tensor":
        operation = Operation((self, other), (self, other), lambda grad, a, b: (grad * b, grad * a))
        return Tensor(Memory(self.memory.array * other.memory.array), operation)

    def sum(self) -> "Tensor":
        shape = self.memory.array.shape
        operation = Operation((self,), (), lambda grad: (np.broadcast_to(grad, shape),))
        return Tensor(Memory(self.memory.array.sum()), operation)

    def add_(self, number: float) -> None:
        """Write in place."""
        self.memory.array += number
        self.memory.version.count += 1

    def backward(self) -> None:
        """Add to the gradients of all leaves; each operation lets go of what it saved as soon as it has run."""
        grads: dict[Tensor | Operation, Any] = {self.operation or self: 1.0}
        for place in reversed(_inputs_first(self.operation or self, {})):
            grad = grads.pop(place)
            if isinstance(place, Tensor):
                place.grad = place.grad + grad
            else:
                for source, part in zip(place.sources, place.run(grad), strict=True):
                    grads[source] = grads.get(source, 0.0) + part


class Operation:
    """Where its inputs came from, what its backward needs (as the hooks packed it), and the rule."""

    def __init__(self, inputs: tuple[Tensor, ...], saved: tuple[Tensor, ...], rule: Callable[..., Any]) -> None:
        pack, self.unpack = _hooks.stack[-1]
        self.sources = [tensor.operation or tensor for tensor in inputs]
        self.saved = [pack(tensor) for tensor in saved]
        self.rule = rule

    def run(self, grad: Any) -> Any:
        saved, self.saved = self.saved, []
        return self.rule(grad, *(self.unpack(packed).memory.array for packed in saved))


def _inputs_first(place: Tensor | Operation, seen: dict[Tensor | Operation, None]) -> list[Tensor | Operation]:
    for source in place.sources if isinstance(place, Operation) else []:
        if source not in seen:
            _inputs_first(source, seen)
    seen[place] = None
    return list(seen)


def _same(tensor: Tensor) -> Tensor:
    return tensor


class _Hooks(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
            (lambda tensor: tensor, lambda tensor: tensor)
        ]


_hooks = _Hooks()


@contextmanager
def saved_hooks(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Install a pair of hooks for this thread; the innermost pair runs."""
    _hooks.stack.append((pack, unpack))
    try:
        yield
    finally:
        _hooks.stack.pop()
