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
        limit: finite elements beyond it, up or down, become it; the range of a group, or an element rebuilt at the end
            of the range, could overflow otherwise.
        least: a group with a smaller range is taken as constant; its scale, or the inverse of it, would not be a
            normal number otherwise.
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


SPECIALS = 3
"""Codes that groups with numbers that are not finite give up, the last ones: minus infinity, infinity and NaN."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that the finite elements of each group are rounded to: ``low + code * abs(scale)``.

    Args:
        low: the smallest finite element.
        scale: distance of neighbours, 0 for constant groups; its sign bit is set where :data:`SPECIALS` are.
        inverse: codes per unit; 0 where ``scale`` is.
    """

    low: Array
    scale: Array
    inverse: Array

    @classmethod
    def of(cls, extent: "Extent", bits: int, arithmetic: Arithmetic) -> "Grid":
        """Return the grids of groups, whose codes reach from the smallest to the largest finite element."""
        low = extent.low
        number = low.dtype.type
        span = extent.high - low
        levels: Array | np.floating = number(2**bits - 1)
        if extent.special is not None:
            levels = np.where(extent.special, levels - number(SPECIALS), levels)
        scale, inverse = span / levels, levels / span
        if not span.min() >= arithmetic.least:
            scale, inverse = (np.where(span >= arithmetic.least, array, number(0)) for array in (scale, inverse))
        if extent.special is not None:
            np.negative(scale, out=scale, where=extent.special)
        return cls(low, scale, inverse)


@dataclass(frozen=True, slots=True)
class Extent:
    """The smallest and the largest finite element of each group; 0 where there is none.

    Args:
        special: which groups hold a NaN or an infinity; None if none does.
        elements: what is rounded in place of the elements: held to the limit, and finite; None if they are that.
    """

    low: Array
    high: Array
    special: Array | None = None
    elements: Array | None = None

    @classmethod
    def of(cls, values: Array, run: Run, bits: int, arithmetic: Arithmetic) -> "Extent":
        """Return the extent of every group of a run."""
        low, high = extremes(values, run.starts)
        limit = values.dtype.type(arithmetic.limit)
        if low.min() >= -limit and high.max() <= limit:
            return cls(low, high)
        finite = np.isfinite(values)
        held = np.clip(values, -limit, limit)
        low, _ = extremes(np.where(finite, held, np.inf).astype(values.dtype), run.starts)
        _, high = extremes(np.where(finite, held, -np.inf).astype(values.dtype), run.starts)
        special = ~np.logical_and.reduceat(finite, run.starts)
        low[low == np.inf] = high[high == -np.inf] = 0
        if bits == 2:  # a single code is left
            middle = low + (high - low) / 2
            low, high = np.where(special, middle, low), np.where(special, middle, high)
        return cls(low, high, special, np.where(finite, held, np.repeat(low, run.sizes)))


class Quantizer:
    """The memory of one call.

    Args:
        bits: of a code.
        longest: elements of the longest run.
        seed: word of :func:`~tensorstash.codecs.noise.seed_word` for stochastic rounding; None for rounding to nearest.
    """

    def __init__(self, bits: int, longest: int, arithmetic: Arithmetic, seed: int | None) -> None:
        self._bits = bits
        self._arithmetic = arithmetic
        self._work = np.empty((2, longest), arithmetic.dtype)
        self._codes = np.empty(longest, np.uint8)
        self._seed = seed

    def quantize(self, values: Array, run: Run) -> tuple[Grid, Array]:
        """Return the grids and the codes of a run; the codes are overwritten by the next call."""
        extent = Extent.of(values, run, self._bits, self._arithmetic)
        grid = Grid.of(extent, self._bits, self._arithmetic)
        work: Array = self._work[0, : run.length]
        factor: Array = self._work[1, : run.length]
        codes = self._codes[: run.length]
        run.spread(grid.low, work)
        np.subtract(values if extent.elements is None else extent.elements, work, out=work)
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
        if extent.special is not None and extent.special.any():
            place = np.flatnonzero(~np.isfinite(values))
            odd = values[place]
            codes[place] = 2**self._bits - SPECIALS + (odd > 0) + 2 * np.isnan(odd)
        return grid, codes

    def dequantize(self, codes: Array, scale: Array, low: Array, run: Run) -> Array:
        """Return the elements of a run; they are overwritten by the next call."""
        work: Array = self._work[0, : run.length]
        factor: Array = self._work[1, : run.length]
        np.copyto(work, codes)
        run.spread(np.abs(scale), factor)
        work *= factor
        run.spread(low, factor)
        work += factor
        special = np.signbit(scale)
        if special.any():
            first = 2**self._bits - SPECIALS
            place = np.flatnonzero((codes >= first) & np.repeat(special, run.sizes))
            work[place] = np.array([-np.inf, np.inf, np.nan])[codes[place] - first]
        return work


def error_bounds(
    values: Array, run: Run, bits: int, share: float, arithmetic: Arithmetic, narrowed: FloatFormat | None
) -> Array:
    """Return the largest error of each element, in ``float64``.

    With R the range, M the largest magnitude and u the roundoff: subtracting, scaling and the inverse lose at most
    4u of R, the scale and its product 4u of R, the last sum u of M; 16u (R + M) covers them and their products. Even
    a thread that flushes subnormals to zero loses no more than ten times the smallest normal number on top.

    Args:
        share: of a scale that rounding to a code can lose: a half to nearest, one in stochastic rounding.
        narrowed: the format that the results are rounded to, if that is not the one that is computed in.
    """
    # Of more bits, so that the range is that of the elements where a single code is left.
    extent = Extent.of(values, run, 8, arithmetic)
    scale = np.abs(Grid.of(extent, bits, arithmetic).scale).astype(np.float64)
    low, high = extent.low.astype(np.float64), extent.high.astype(np.float64)
    reach = np.maximum(np.abs(low), np.abs(high))
    span = high - low
    bound = np.where(np.isfinite(scale) & (scale > 0), share * scale, span)
    bound += 16 * arithmetic.roundoff * (span + reach)
    bound += 10 * float(np.finfo(arithmetic.dtype).tiny)
    if narrowed is not None:
        bound += narrowed.roundoff * (reach + bound) + narrowed.smallest / 2
    bounds = np.repeat(np.where(span > 0, bound, 0.0), run.sizes)
    bounds += np.maximum(np.abs(values.astype(np.float64)) - arithmetic.limit, 0)
    return np.where(np.isfinite(values), bounds, 0.0)
