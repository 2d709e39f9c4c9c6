"""The arithmetic of affine quantization, on one run of groups at a time."""

from dataclasses import dataclass

import numpy as np

from tensorstash.buffers import Array
from tensorstash.codecs.floats import FloatFormat
from tensorstash.codecs.groups import Run, extremes
from tensorstash.codecs.noise import group_keys, noise


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the format that is computed in makes possible.

    Args:
        dtype: its NumPy name.
        roundoff: largest relative error of an operation.
        magic: adding it rounds to a whole number, whose bits are then the lowest of the sum.
        limit: a group that reaches beyond it, up or down, is stored as it is; its range, or an element rebuilt at the
            end of the range, could overflow otherwise.
        least: a group with a smaller range, but for 0, is stored as it is; its scale, or the inverse of it, would
            not be a normal number otherwise.
    """

    dtype: str
    roundoff: float
    magic: float
    limit: float
    least: float

    @classmethod
    def of(cls, dtype: str) -> "Arithmetic":
        """Return what tensors of a dtype are computed in: ``float64`` in itself, anything else in ``float32``."""
        if dtype == "float64":
            return cls("float64", 2.0**-53, 1.5 * 2.0**52, 2.0**1022, 2.0**-1000)
        return cls("float32", 2.0**-24, 1.5 * 2.0**23, 2.0**126, 2.0**-100)


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that the elements of each group are rounded to: ``low + code * scale``.

    Args:
        low: the smallest element; 0 for groups stored as they are.
        scale: distance of neighbours; 0 for constant groups, NaN for groups stored as they are.
        inverse: codes per unit; 0 where ``scale`` is not positive.
        unusable: which groups are stored as they are; None if none is.
    """

    low: Array
    scale: Array
    inverse: Array
    unusable: Array | None

    @classmethod
    def of(cls, low: Array, high: Array, levels: int, arithmetic: Arithmetic) -> "Grid":
        """Return the grids of ``levels + 1`` numbers from ``low`` to ``high``, the extremes of each group."""
        number = low.dtype.type
        span = high - low
        if low.min() >= -arithmetic.limit and high.max() <= arithmetic.limit and span.min() >= arithmetic.least:
            return cls(low, span / number(levels), number(levels) / span, None)
        constant = span == 0
        unusable = ~((low >= -arithmetic.limit) & (high <= arithmetic.limit) & (constant | (span >= arithmetic.least)))
        scale = np.where(unusable, number(np.nan), span / number(levels))
        inverse = np.where(unusable | constant, number(0), number(levels) / span)
        return cls(np.where(unusable, number(0), low), scale, inverse, unusable if unusable.any() else None)


class Quantizer:
    """The memory of one call.

    Args:
        bits: of a code.
        longest: elements of the longest run.
        seed: word of :func:`~tensorstash.codecs.noise.seed_word` for stochastic rounding; None for rounding to nearest.
    """

    def __init__(self, bits: int, longest: int, arithmetic: Arithmetic, seed: int | None) -> None:
        self._levels = 2**bits - 1
        self._arithmetic = arithmetic
        self._work = np.empty((2, longest), arithmetic.dtype)
        self._codes = np.empty(longest, np.uint8)
        self._seed = seed

    def quantize(self, values: Array, run: Run) -> tuple[Grid, Array]:
        """Return the grids and the codes of a run; the codes are overwritten by the next call."""
        grid = Grid.of(*extremes(values, run.starts), self._levels, self._arithmetic)
        work: Array = self._work[0, : run.length]
        factor: Array = self._work[1, : run.length]
        codes = self._codes[: run.length]
        run.spread(grid.low, work)
        np.subtract(values, work, out=work)
        if self._seed is None:
            run.spread(grid.inverse, factor)
            work *= factor
            work += values.dtype.type(self._arithmetic.magic)
            np.copyto(codes, work.view(f"u{work.itemsize}"), casting="unsafe")
        else:
            # In units of 2**-16 of a scale, scaled down a little so that rounding errors cannot carry the largest
            # element beyond the last code: whole number + 16 random bits, of which the upper half is the code.
            run.spread(grid.inverse * values.dtype.type(65536 * (1 - 2.0**-21)), factor)
            work *= factor
            fixed = factor.view(f"i{work.itemsize}")
            np.copyto(fixed, work, casting="unsafe")
            fixed += noise(group_keys(grid.low, grid.scale, self._seed), run)
            fixed >>= 16
            np.copyto(codes, fixed, casting="unsafe")
        if grid.unusable is not None:
            codes[np.repeat(grid.unusable, run.sizes)] = 0
        return grid, codes

    def dequantize(self, codes: Array, scale: Array, low: Array, run: Run) -> Array:
        """Return the elements of a run; they are overwritten by the next call."""
        work: Array = self._work[0, : run.length]
        factor: Array = self._work[1, : run.length]
        np.copyto(work, codes)
        run.spread(scale, factor)
        work *= factor
        run.spread(low, factor)
        work += factor
        return work


def error_bounds(
    values: Array, starts: Array, bits: int, share: float, arithmetic: Arithmetic, narrowed: FloatFormat | None
) -> Array:
    """Return the largest error of each group, in ``float64``.

    With R the range, M the largest magnitude and u the roundoff: subtracting, scaling and the inverse lose at most
    4u of R, the scale and its product 4u of R, the last sum u of M; 16u (R + M) covers them and their products. Even
    a thread that flushes subnormals to zero loses no more than ten times the smallest normal number on top.

    Args:
        share: of a scale that rounding to a code can lose: a half to nearest, one in stochastic rounding.
        narrowed: the format that the results are rounded to, if that is not the one that is computed in.
    """
    low, high = extremes(values, starts)
    scale = Grid.of(low, high, 2**bits - 1, arithmetic).scale.astype(np.float64)
    low, high = low.astype(np.float64), high.astype(np.float64)
    reach = np.maximum(np.abs(low), np.abs(high))
    bound = share * scale + 16 * arithmetic.roundoff * (high - low + reach)
    bound += 10 * float(np.finfo(arithmetic.dtype).tiny)
    if narrowed is not None:
        bound += narrowed.roundoff * (reach + bound) + narrowed.smallest / 2
    kept: Array = np.where(scale > 0, bound, 0.0)
    return kept
