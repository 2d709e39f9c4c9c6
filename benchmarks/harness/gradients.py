"""Gradients on disk, and how far two sets of them are apart."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def save(path: Path | None, gradients: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Return the SHA-256 over the gradients' names, shapes and bits, and write them where there is a path."""
    arrays = dict(gradients)
    if path:
        np.savez(path, **arrays)
    digest = sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def largest_relative_difference(path: Path, reference: Path) -> float:
    """Return the largest ``norm(gradient - reference) / norm(reference)`` over the parameters."""
    with np.load(path) as ours, np.load(reference) as theirs:
        return max(
            float(np.linalg.norm((ours[name] - theirs[name]).ravel()) / np.linalg.norm(theirs[name].ravel()))
            for name in theirs.files
        )
