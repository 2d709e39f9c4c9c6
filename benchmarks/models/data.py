"""Real data that needs no download: Python's own documentation and scikit-learn's handwritten digits."""

from importlib.metadata import distribution
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import Model

Batch = tuple[NDArray[np.generic], NDArray[np.int64]]


class Text:
    """The language reference as ``help()`` carries it, one token per byte."""

    def __init__(self) -> None:
        document = "\n\n".join(text for _, text in sorted(topics.items()))
        self.items = np.frombuffer(document.encode(), np.uint8)

    def batch(self, size: int, length: int, seed: int) -> Batch:
        """Return inputs and targets, each int64 of shape (size, length); a seed always gives the same batch."""
        starts = np.random.default_rng(seed).integers(0, len(self.items) - length, size)
        windows = self.items[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


class Digits:
    """1797 handwritten digits, each pixel enlarged to a square of ``scale`` by ``scale``; writer by writer."""

    classes = 10

    def __init__(self, scale: int) -> None:
        # The file that load_digits() reads; importing scikit-learn would take longer than small trainings do.
        path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        rows = np.loadtxt(str(path), delimiter=",")
        images = np.kron(rows[:, :-1].reshape(-1, 8, 8), np.ones((scale, scale)))
        self.items = ((images - images.mean()) / images.std()).astype(np.float32)[:, None]
        self.labels = rows[:, -1].astype(np.int64)

    def batch(self, size: int, seed: int) -> Batch:
        """Return images, float32 (size, 1, 8 scale, 8 scale), and labels, int64 (size,)."""
        chosen = np.random.default_rng(seed).integers(0, len(self.labels), size)
        return self.items[chosen], self.labels[chosen]


class Batches:
    """What a model learns, or what is held out of it."""

    def __init__(self, model: Model, *, held_out: bool = False) -> None:
        self._model = model
        self._data = Text() if model.network == "gpt" else Digits(model.scale)
        border = round((1 - model.held_out) * len(self._data.items))
        part = slice(border, None) if held_out else slice(border)
        self._data.items = self._data.items[part]
        if isinstance(self._data, Digits):
            self._data.labels = self._data.labels[part]

    def __call__(self, seed: int, *, small: bool = False) -> Batch:
        """Return inputs and targets of one step, or of one that leaves next to no activations."""
        if isinstance(self._data, Text):
            size, length = (1, 8) if small else (self._model.batch, self._model.context)
            return self._data.batch(size, length, seed)
        return self._data.batch(2 if small else self._model.batch, seed)
