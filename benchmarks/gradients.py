"""Gradients on disk, and how far two sets of them are apart."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def save(path: Path, gradients: Iterable[tuple[str, NDArray[np.float32]]]) -> str:
    """Write the gradients and return the SHA-256 over their names, shapes and bits."""
    arrays = dict(gradients)
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
