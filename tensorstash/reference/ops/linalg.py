"""Matrix products."""

from __future__ import annotations

import numpy as np

from tensorstash.reference.autograd.primitive import primitive
from tensorstash.reference.dispatch import composite
from tensorstash.reference.storage.dtypes import Array
from tensorstash.reference.tensor import Tensor


@primitive(a=lambda g, b: matmul(g, b.conj().swap_last()), b=lambda g, a: matmul(a.conj().swap_last(), g))
def multiply_matrices(a: Array, b: Array) -> Array:
    """The product of matrices; leading dimensions broadcast."""
    return np.asarray(np.matmul(a, b))


@composite
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Give the matrix product; leading dimensions broadcast, vectors count as one row or column.

    Raises:
        ValueError: an operand is 0-d or the inner dimensions differ.
    """
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"cannot multiply matrices of shape {a.shape} and {b.shape}")
    rows = a.unsqueeze(0) if a.ndim == 1 else a
    columns = b.unsqueeze(1) if b.ndim == 1 else b
    product = multiply_matrices(rows, columns)
    if b.ndim == 1:
        product = product.squeeze(-1)
    if a.ndim == 1:
        product = product.squeeze(-1 if b.ndim == 1 else -2)
    return product
