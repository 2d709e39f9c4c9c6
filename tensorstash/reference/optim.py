"""Optimizers; they update parameters in place and unrecorded."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tensorstash.reference.autograd.modes import no_grad
from tensorstash.reference.creation import zeros_like
from tensorstash.reference.tensor import Tensor


class SGD:
    """Gradient descent with momentum.

    Args:
        parameters: leaves to update; those without a gradient are left alone.
        lr: step size.
        momentum: share of the previous step that is kept.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.lr, self.momentum = lr, momentum
        self._velocity = [zeros_like(p) for p in self.parameters] if momentum else []

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            update = parameter.grad
            if self.momentum:
                update = self._velocity[index].mul_(self.momentum).add_(update)
            parameter.sub_(update * self.lr)


class Adam:
    """Adaptive moments (Kingma and Ba, arXiv:1412.6980).

    Args:
        parameters: leaves to update; those without a gradient are left alone.
        lr: step size.
        betas: decay of the first and of the second moment.
        eps: added to the root of the second moment.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.betas, self.eps = lr, betas, eps
        self._steps = [0] * len(self.parameters)
        self._first = [zeros_like(p) for p in self.parameters]
        self._second = [zeros_like(p) for p in self.parameters]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self._update(index, parameter, parameter.grad)

    def _update(self, index: int, parameter: Tensor, gradient: Tensor) -> None:
        decay, decay_square = self.betas
        self._steps[index] += 1
        first = self._first[index].mul_(decay).add_(gradient * (1 - decay))
        second = self._second[index].mul_(decay_square).add_(gradient * gradient * (1 - decay_square))
        bias, bias_square = (1 - beta ** self._steps[index] for beta in self.betas)
        scale = second.sqrt() / math.sqrt(bias_square) + self.eps
        parameter.sub_(first / scale * (self.lr / bias))
