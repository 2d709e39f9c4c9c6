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
    """Network, batches and optimizer of one framework, which subclasses make.

    They also say how a tensor is made of an array (``_tensor``) and an array of a gradient (``_array``), what the
    cross entropy is (``_loss``), and what records no graph (``_no_grad``).
    """

    def __init__(self, model: Model, network: Any, optimizer: Any) -> None:
        self._model, self._network, self._optimizer = model, network, optimizer
        self._batches = Batches(model)

    def forward(self, step: int, *, small: bool = False) -> Any:
        """Return the loss of a step's batch, with its graph; of a few numbers, if small."""
        return self._loss(*self._logits(self._batches, step, small=small))

    def backward(self, loss: Any) -> float:
        """Compute the gradients, and return the loss as a number."""
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
        with self._no_grad():
            for seed in range(batches):
                logits, targets = self._logits(held_out, seed)
                losses.append(self._loss(logits, targets).item())
                hits.append(np.mean((logits.argmax(-1) == targets).numpy()))
        self._network.train()
        return mean(losses), float(np.mean(hits))

    def peak(self) -> None:
        """Return None: memory is the host's."""
        return

    @abstractmethod
    def update(self, rate: float | None = None) -> None:
        """Step the optimizer, at another rate where one is given, and :meth:`clear`."""

    @abstractmethod
    def clear(self) -> None:
        """Set the gradients to zero, keeping their memory."""

    def _logits(self, batches: Batches, seed: int, *, small: bool = False) -> tuple[Any, Any]:
        inputs, targets = map(self._tensor, batches(seed, small=small))
        return self._network(inputs).flatten(0, -2), targets.flatten()
