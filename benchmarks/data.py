"""Real data that needs no download: Python's own documentation and scikit-learn's handwritten digits."""

from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Batch = tuple[NDArray[np.generic], NDArray[np.int64]]


class Text:
    """The language reference as ``help()`` carries it, one token per byte."""

    vocabulary = 256

    def __init__(self) -> None:
        document = "\n\n".join(text for _, text in sorted(topics.items()))
        self._bytes = np.frombuffer(document.encode(), np.uint8)

    def batch(self, size: int, length: int, seed: int) -> Batch:
        """Return inputs and targets, each int64 of shape (size, length); a seed always gives the same batch."""
        starts = np.random.default_rng(seed).integers(0, len(self._bytes) - length, size)
        windows = self._bytes[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


class Digits:
    """1797 handwritten digits, each pixel enlarged to a square of ``scale`` by ``scale``."""

    classes = 10

    def __init__(self, scale: int) -> None:
        bunch = load_digits()
        enlarged = np.kron(bunch.images, np.ones((scale, scale)))
        self._images = ((enlarged - enlarged.mean()) / enlarged.std()).astype(np.float32)[:, None]
        self._labels = bunch.target.astype(np.int64)

    def batch(self, size: int, seed: int) -> Batch:
        """Return images, float32 (size, 1, 8 scale, 8 scale), and labels, int64 (size,)."""
        chosen = np.random.default_rng(seed).integers(0, len(self._labels), size)
        return self._images[chosen], self._labels[chosen]
