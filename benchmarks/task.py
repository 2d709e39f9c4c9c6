"""What the measuring code asks of a training, whatever the framework."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

BUILDERS = {"torch": "benchmarks.torch_gpt", "paddle": "benchmarks.paddle_resnet"}
"""The module that builds each framework's task, imported only by the process that runs it."""

STEPS = {"torch": 10, "paddle": 8}
"""Training steps of a run, unless told otherwise; enough to see the loss fall, few enough for a table in minutes."""


class Task(Protocol):
    """A model, its data and its optimizer. Everything is seeded: a step sees the same numbers in every process."""

    def warm_up(self) -> None:
        """Run one step on a few numbers, so that gradients, optimizer state and libraries are in memory."""
        ...

    def forward(self, step: int) -> Any:
        """Return the loss of the batch of this step, with its graph."""
        ...

    def backward(self, loss: Any) -> float:
        """Compute the gradients and return the loss as a number."""
        ...

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each parameter by name; the arrays are valid until :meth:`update`."""
        ...

    def update(self) -> None:
        """Step the optimizer and set the gradients to zero, keeping their memory."""
        ...


def build(framework: str, *, quick: bool) -> Task:
    """Return the task of a framework, in full size or in one that takes a second."""
    return cast(Task, import_module(BUILDERS[framework]).build(quick=quick))
