"""Real data that needs no download: Python's own documentation and scikit-learn's handwritten digits."""

from importlib.metadata import distribution
from pydoc_data.topics import topics
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import Model

Batch = tuple[NDArray[np.generic], NDArray[np.int64]]
A = TypeVar("A", bound=NDArray[np.generic])

WHOLE = (0.0, 1.0)

_DIGITS = "sklearn/datasets/data/digits.csv.gz"


class Text:
    """The language reference as ``help()`` carries it, one token per byte.

    Args:
        part: which of it, from one fraction to another.
    """

    def __init__(self, part: tuple[float, float] = WHOLE) -> None:
        document = "\n\n".join(text for _, text in sorted(topics.items()))
        self._bytes = _part(np.frombuffer(document.encode(), np.uint8), part)

    def batch(self, size: int, length: int, seed: int) -> Batch:
        """Return inputs and targets, each int64 of shape (size, length); a seed always gives the same batch."""
        starts = np.random.default_rng(seed).integers(0, len(self._bytes) - length, size)
        windows = self._bytes[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


class Digits:
    """1797 handwritten digits, each pixel enlarged to a square of ``scale`` by ``scale``.

    Args:
        scale: as above.
        part: which of them, from one fraction to another; writers follow one another.
    """

    classes = 10

    def __init__(self, scale: int, part: tuple[float, float] = WHOLE) -> None:
        # The file that load_digits() reads; importing scikit-learn would take longer than small trainings do.
        rows = np.loadtxt(str(distribution("scikit-learn").locate_file(_DIGITS)), delimiter=",")
        enlarged = np.kron(rows[:, :-1].reshape(-1, 8, 8), np.ones((scale, scale)))
        self._images = _part(((enlarged - enlarged.mean()) / enlarged.std()).astype(np.float32)[:, None], part)
        self._labels = _part(rows[:, -1].astype(np.int64), part)

    def batch(self, size: int, seed: int) -> Batch:
        """Return images, float32 (size, 1, 8 scale, 8 scale), and labels, int64 (size,)."""
        chosen = np.random.default_rng(seed).integers(0, len(self._labels), size)
        return self._images[chosen], self._labels[chosen]


class Batches:
    """What a model learns, or what is held out of it."""

    def __init__(self, model: Model, *, held_out: bool = False) -> None:
        border = 1 - model.held_out
        part = (border, 1.0) if held_out else (0.0, border)
        self._model = model
        self._data = Text(part) if model.network == "gpt" else Digits(model.scale, part)

    def __call__(self, seed: int, *, small: bool = False) -> Batch:
        """Return inputs and targets of one step, or of one that leaves next to no activations."""
        if isinstance(self._data, Text):
            size, length = (1, 8) if small else (self._model.batch, self._model.context)
            return self._data.batch(size, length, seed)
        return self._data.batch(2 if small else self._model.batch, seed)


def _part(items: A, part: tuple[float, float]) -> A:
    first, last = (round(fraction * len(items)) for fraction in part)
    return items[first:last]
