"""Modules: parameters and buffers found by looking at attributes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorstash.reference.creation import tensor
from tensorstash.reference.ops import gelu
from tensorstash.reference.tensor import Parameter, Tensor


class Module:
    """A function with parameters: subclass it, assign parameters and modules as attributes, define `forward`.

    Attributes that are a `Parameter`, a `Module`, a list of modules, or another tensor (a buffer) make up its state.
    A call goes to the attribute `forward`, so an instance may replace it and delete the replacement again.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Give this module and all below it with dotted names, each module once."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [("", self)]
        while stack:
            path, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            stack += reversed([(f"{path}.{name}" if path else name, child) for name, child in module._children()])

    def _children(self) -> Iterator[tuple[str, Module]]:
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list):
                yield from ((f"{name}.{i}", item) for i, item in enumerate(value) if isinstance(item, Module))

    def state_dict(self) -> dict[str, Tensor]:
        """Give parameters and buffers by dotted name, detached, sharing memory."""
        return {name: value.detach() for name, value in self._named_tensors()}

    def parameters(self) -> Iterator[Parameter]:
        """Give the parameters, each once."""
        unique = {id(value): value for _, value in self._named_tensors()}
        return (value for value in unique.values() if isinstance(value, Parameter))

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor):
                    yield f"{path}.{name}" if path else name, value


class Linear(Module):
    """``x @ weight.T + bias`` with weight (outputs, inputs), both drawn uniformly from ±1/√(inputs)."""

    def __init__(self, inputs: int, outputs: int, *, generator: np.random.Generator, device: str = "cpu") -> None:
        bound = 1 / math.sqrt(inputs)
        self.weight = Parameter(tensor(generator.uniform(-bound, bound, (outputs, inputs)), "float32", device))
        self.bias = Parameter(tensor(generator.uniform(-bound, bound, outputs), "float32", device))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.swap_last() + self.bias


class GELU(Module):
    """The tanh form of the Gaussian error linear unit."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


class Sequential(Module):
    """Modules one after another."""

    def __init__(self, *layers: Module) -> None:
        self.layers = list(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
