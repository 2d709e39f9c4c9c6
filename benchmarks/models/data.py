"""Real data that needs no download: Python's own documentation and scikit-learn's handwritten digits."""

from importlib.metadata import distribution
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import Model

CLASSES = 10
"""Of digits."""


def text() -> NDArray[np.uint8]:
    """Return the language reference as ``help()`` carries it, one token per byte."""
    document = "\n\n".join(text for _, text in sorted(topics.items()))
    return np.frombuffer(document.encode(), np.uint8)


def digits(scale: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return 1797 digits, writer by writer: (n, 1, 8 scale, 8 scale), a pixel being a square, and their labels."""
    # The file that load_digits() reads; importing scikit-learn would take longer than small trainings do.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(path), delimiter=",")
    images = np.kron(rows[:, :-1].reshape(-1, 8, 8), np.ones((scale, scale)))
    return ((images - images.mean()) / images.std()).astype(np.float32)[:, None], rows[:, -1].astype(np.int64)


class Batches:
    """What a model learns, or what is held out of it; a seed always gives the same batch."""

    def __init__(self, model: Model, *, held_out: bool = False) -> None:
        self._model = model
        arrays: Any = (text(),) if model.network == "gpt" else digits(model.scale)
        border = round((1 - model.held_out) * len(arrays[0]))
        self._arrays = [array[border:] if held_out else array[:border] for array in arrays]

    def __call__(self, seed: int, *, small: bool = False) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return inputs and targets of one step, or of one that leaves next to no activations."""
        items, random = self._arrays[0], np.random.default_rng(seed)
        if self._model.network == "gpt":
            size, length = (1, 8) if small else (self._model.batch, self._model.context)
            starts = random.integers(0, len(items) - length, size)
            windows = items[starts[:, None] + np.arange(length + 1)].astype(np.int64)
            return windows[:, :-1], windows[:, 1:]
        chosen = random.integers(0, len(items), 2 if small else self._model.batch)
        return items[chosen], self._arrays[1][chosen]
