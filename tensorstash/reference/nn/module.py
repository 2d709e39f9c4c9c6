"""Modules: parameters and buffers found by looking at attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensorstash.reference.autograd.modes import no_grad
from tensorstash.reference.tensor import Parameter, Tensor


class Module:
    """A function with parameters: subclass it, assign parameters and modules as attributes, define `forward`.

    Attributes that are a `Parameter`, a `Module`, a list of modules, or another tensor (a buffer, such as running
    statistics) make up its state. A call goes to the attribute `forward`, so an instance may replace it and delete
    the replacement again.
    """

    training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def children(self) -> Iterator[tuple[str, Module]]:
        """Give the direct submodules with their names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list):
                yield from ((f"{name}.{i}", item) for i, item in enumerate(value) if isinstance(item, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Give this module and all below it with dotted names, each module once."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            stack += reversed([(f"{path}.{name}" if path else name, child) for name, child in module.children()])

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor):
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Give the parameters with dotted names, a shared one under its first name."""
        seen: set[int] = set()
        for name, value in self._named_tensors():
            if isinstance(value, Parameter) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def parameters(self) -> Iterator[Parameter]:
        """Give the parameters, each once."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Give parameters and buffers by dotted name, detached, sharing memory."""
        return {name: value.detach() for name, value in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy values into parameters and buffers.

        Raises:
            KeyError: names are missing or unknown; nothing is copied.
        """
        own = dict(self._named_tensors())
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise KeyError(f"state does not fit {type(self).__name__}: missing {missing}, unknown {unknown}")
        with no_grad():
            for name, value in own.items():
                value.copy_(state[name])

    def train(self, mode: bool = True) -> Module:
        """Set training mode here and below."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set evaluation mode here and below."""
        return self.train(False)

    def to(self, device: str) -> Module:
        """Move parameters and buffers to a device; the tensor objects stay the same, gradients are dropped."""
        with no_grad():
            for _, value in self._named_tensors():
                value.become(value.detach().to(device))
                value.grad = None
        return self
