"""A network that learns, as the measuring code sees it; what is spelled alike in both frameworks."""

from abc import abstractmethod
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.models import Model
from benchmarks.models.data import Batches
from tensorstash.cli import bench_worker


class Training(bench_worker.Training):
    """Network, batches and optimizer of one framework, which subclasses make.

    They also say how a tensor is made of an array (``_tensor``), what the cross entropy is (``_loss``), and what
    records no graph (``_no_grad``).
    """

    def __init__(self, model: Model, network: Any, optimizer: Any) -> None:
        super().__init__(network, optimizer)
        self._model = model
        self._batches = Batches(model)

    def forward(self, step: int, *, small: bool = False) -> Any:
        return self._loss(*self._logits(self._batches, step, small=small))

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

    @abstractmethod
    def update(self, rate: float | None = None) -> None:
        """Step the optimizer, at another rate where one is given, and :meth:`clear`."""

    @abstractmethod
    def clear(self) -> None:
        """Set the gradients to zero, keeping their memory."""

    def _logits(self, batches: Batches, seed: int, *, small: bool = False) -> tuple[Any, Any]:
        inputs, targets = map(self._tensor, batches(seed, small=small))
        return self._network(inputs).flatten(0, -2), targets.flatten()
