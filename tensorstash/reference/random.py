"""Random tensors from an explicit generator; there is no global one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorstash.reference.creation import tensor
from tensorstash.reference.storage.dtypes import DTypeLike, float32
from tensorstash.reference.tensor import Tensor


class Generator:
    """A stream of random numbers; equal seeds give equal tensors on every device. Not thread-safe.

    >>> Generator(1).normal((2,)).tolist() == Generator(1).normal((2,)).tolist()
    True
    """

    def __init__(self, seed: int) -> None:
        self._bits: Any = np.random.PCG64(seed)
        self._random = np.random.Generator(self._bits)

    def manual_seed(self, seed: int) -> None:
        """Start again from a seed."""
        self._bits.state = np.random.PCG64(seed).state

    def get_state(self) -> dict[str, Any]:
        """Give the position in the stream."""
        return dict(self._bits.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position that `get_state` gave."""
        self._bits.state = state

    def normal(self, shape: Sequence[int], dtype: DTypeLike = float32, device: str = "cpu") -> Tensor:
        """Give standard normal numbers."""
        return tensor(self._random.standard_normal(shape), dtype, device)

    def uniform(
        self, shape: Sequence[int], low: float, high: float, dtype: DTypeLike = float32, device: str = "cpu"
    ) -> Tensor:
        """Give numbers between `low` and `high`."""
        return tensor(self._random.uniform(low, high, shape), dtype, device)

    def integers(self, shape: Sequence[int], stop: int, device: str = "cpu") -> Tensor:
        """Give int64 numbers from 0 to `stop` - 1."""
        return tensor(self._random.integers(stop, size=shape), "int64", device)

    def bernoulli(self, shape: Sequence[int], p: float, device: str = "cpu") -> Tensor:
        """Give booleans that hold with probability `p`."""
        return tensor(self._random.random(shape) < p, "bool", device)
