"""Real data that needs no download: Python's own documentation and handwritten digits.

The digits are those of scikit-learn, part of https://doi.org/10.24432/C50P49 by E. Alpaydin and C. Kaynak (CC BY 4.0).
"""

from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import Model


@cache
def text() -> NDArray[np.uint8]:
    """Return the language reference as ``help()`` carries it, one token per byte."""
    document = "\n\n".join(text for _, text in sorted(topics.items()))
    return np.frombuffer(document.encode(), np.uint8)


@cache
def digits(scale: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return 1797 digits, writer by writer: (n, 1, 8 scale, 8 scale), a pixel being a square, and their labels."""
    rows = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    images = np.kron(rows[:, :-1].reshape(-1, 8, 8), np.ones((scale, scale)))
    return ((images - images.mean()) / images.std()).astype(np.float32)[:, None], rows[:, -1].astype(np.int64)


def batch(model: Model, seed: int, *, held_out: bool = False) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return inputs and targets of one step, of what a model learns or of what is held out; one seed, one batch."""
    arrays: Any = (text(),) if model.network == "gpt" else digits(model.scale)
    border = round((1 - model.held_out) * len(arrays[0]))
    items, *labels = (array[border:] if held_out else array[:border] for array in arrays)
    random = np.random.default_rng(seed)
    if model.network == "gpt":
        starts = random.integers(0, len(items) - model.context, model.batch)
        windows = items[starts[:, None] + np.arange(model.context + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]
    chosen = random.integers(0, len(items), model.batch)
    return items[chosen], labels[0][chosen]
