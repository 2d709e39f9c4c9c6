"""Modules: parameters and buffers found by looking at attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorstash.reference.ops import gelu
from tensorstash.reference.tensor import Parameter, Tensor


class Module:
    """A function with parameters: subclass it, assign parameters and modules as attributes, define `forward`.

    Attributes that are a `Parameter`, a `Module`, a list of modules, or another tensor (a buffer) make up its state.
    A call goes to the attribute `forward`, so an instance may replace it and delete the replacement again.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Give this module and all below it with dotted names, each module once."""
        found: dict[Module, str] = {}
        self._name("", found)
        return ((name, module) for module, name in found.items())

    def _name(self, path: str, found: dict[Module, str]) -> None:
        if self not in found:
            found[self] = path
            for name, value in vars(self).items():
                items = enumerate(value) if isinstance(value, list) else [("", value)]
                for number, child in items:
                    if isinstance(child, Module):
                        child._name(".".join(filter(None, (path, name, str(number)))), found)

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
    """``x @ weight.T + bias`` with weight (outputs, inputs)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = Parameter(weight), Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


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
