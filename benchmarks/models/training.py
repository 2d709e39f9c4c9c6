"""A network that learns, as the measuring code sees it; what is spelled alike in both frameworks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import Model
from benchmarks.models.data import Batches


class Training(ABC):
    """Network, batches and optimizer of one framework, which subclasses make."""

    def __init__(self, model: Model, network: Any, optimizer: Any) -> None:
        self._model, self._network, self._optimizer = model, network, optimizer
        self._batches = Batches(model)

    def warm_up(self) -> None:
        """Run one step on a few numbers, so that gradients, optimizer state and libraries are in memory."""
        self.backward(self._loss(*self._logits(self._batches, 0, small=True)))
        self.update()

    def forward(self, seed: int) -> Any:
        """Return the loss of the batch of this seed, with its graph."""
        return self._loss(*self._logits(self._batches, seed))

    def backward(self, loss: Any) -> float:
        """Compute the gradients and return the loss as a number."""
        loss.backward()
        return float(loss.item())

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each parameter by name; the arrays are valid until gradients change."""
        for name, parameter in self._network.named_parameters():
            if parameter.grad is not None:
                yield name, self._array(parameter.grad)

    def evaluate(self, batches: int) -> tuple[float, float]:
        """Return loss and accuracy on batches of data that is held out."""
        self._network.eval()
        held_out = Batches(self._model, held_out=True)
        losses, hits = [], []
        for seed in range(batches):
            logits, targets = self._logits(held_out, seed)
            losses.append(self._loss(logits, targets).item())
            hits.append(np.mean((logits.argmax(-1) == targets).numpy()))
        self._network.train()
        return mean(losses), float(np.mean(hits))

    @abstractmethod
    def update(self, rate: float | None = None) -> None:
        """Step the optimizer, at another rate where one is given, and :meth:`clear`."""

    @abstractmethod
    def clear(self) -> None:
        """Set the gradients to zero, keeping their memory."""

    @abstractmethod
    def _loss(self, logits: Any, targets: Any) -> Any:
        """Return the cross entropy."""

    @abstractmethod
    def _tensor(self, array: NDArray[Any]) -> Any:
        """Return a tensor; floats in the model's dtype."""

    @abstractmethod
    def _array(self, gradient: Any) -> NDArray[np.float32]:
        """Return the values of a tensor."""

    def _logits(self, batches: Batches, seed: int, *, small: bool = False) -> tuple[Any, Any]:
        inputs, targets = map(self._tensor, batches(seed, small=small))
        return self._network(inputs).flatten(0, -2), targets.flatten()
