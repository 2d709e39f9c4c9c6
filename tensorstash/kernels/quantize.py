"""Affine quantization per group of neighbours, on one run of groups at a time; ``native/affine.c`` does the same."""

from dataclasses import dataclass

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.kernels.bits import coarsen, pack_codes, packed_nbytes, unpack_codes
from tensorstash.kernels.dither import dither, group_keys
from tensorstash.kernels.floats import FORMATS, FloatFormat, narrow, widen
from tensorstash.kernels.groups import Groups, Run, extremes

FINEST = 255
"""The largest code of 8 bits. Fewer bits are codes of 8 bits, rounded once more, which adds 1/34 of a scale to the
error of 4 bits, and 1/170 to that of 2."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The limits of the format of the arithmetic.

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
        """Return the arithmetic of a dtype: ``float64`` in itself, anything else in ``float32``."""
        if dtype == "float64":
            return cls("float64", 2.0**-53, 1.5 * 2.0**52, 2.0**1022, 2.0**-1000)
        return cls("float32", 2.0**-24, 1.5 * 2.0**23, 2.0**126, 2.0**-100)


SPECIALS = 3
"""Codes that groups with numbers that are not finite give up, the last ones: minus infinity, infinity and NaN."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that the finite elements of each group are rounded to: ``low + code * abs(scale)``.

    Args:
        low: the smallest finite element, never -0.
        scale: distance of neighbours, 0 for constant groups; its sign bit is set where :data:`SPECIALS` are.
        inverse: codes per unit; 0 where ``scale`` is.
    """

    low: Array
    scale: Array
    inverse: Array

    @classmethod
    def of(cls, extent: "Extent", bits: int, highest: int, arithmetic: Arithmetic) -> "Grid":
        """Return the grids of groups, whose codes reach from the smallest to the largest finite element.

        Args:
            extent: of the groups.
            bits: of a code; the scale is a multiple of that of 8 bits, but where :data:`SPECIALS` take codes.
            highest: code that ``inverse`` leads to, where :data:`SPECIALS` take none.
            arithmetic: format of the computation.
        """
        number = extent.low.dtype.type
        span = extent.high - extent.low
        scale, inverse = span / number(FINEST), number(highest) / span
        scale *= number(FINEST // (2**bits - 1))
        if extent.special is not None:
            rest = number(2**bits - 1 - SPECIALS)
            scale = np.where(extent.special, span / rest, scale)
            inverse = np.where(extent.special, rest / span, inverse)
        if not span.min() >= arithmetic.least:
            scale, inverse = (np.where(span >= arithmetic.least, array, number(0)) for array in (scale, inverse))
        if extent.special is not None:
            np.negative(scale, out=scale, where=extent.special)
        return cls(extent.low + number(0), scale, inverse)


@dataclass(frozen=True, slots=True)
class Extent:
    """The smallest and the largest finite element of each group; 0 where there is none.

    Args:
        special: which groups hold a NaN or an infinity; None if none does.
        elements: rounded in place of the elements: held to the limit, and finite; None if they are that.
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


def section_nbytes(dtype: str, groups: Groups, bits: int) -> tuple[int, int, int]:
    """Return the bytes that the scales, the lows and the packed codes of a tensor take.

    >>> section_nbytes("bfloat16", Groups.of((300,), 128), 4)
    (12, 12, 150)
    """
    table = groups.count * np.dtype(Arithmetic.of(dtype).dtype).itemsize
    return table, table, packed_nbytes(groups.rows * groups.length, bits)


def quantize(source: Array, body: Array, dtype: str, groups: Groups, bits: int, seed: int | None) -> None:
    """Fill ``body`` with the scales, the lows and the packed codes of a tensor.

    Args:
        source: the elements, as carrier bits.
        body: ``uint8``, as long as :func:`section_nbytes` says; filled.
        dtype: of the tensor.
        groups: of the tensor.
        bits: of a code.
        seed: word of :func:`~tensorstash.kernels.dither.seed_word` for stochastic rounding; None rounds to nearest.
    """
    scales, lows, packed = _sections(body, dtype, groups, bits)
    flat, arithmetic = source.reshape(-1), Arithmetic.of(dtype)
    scratch = np.empty(0 if bits == 8 else groups.longest(), np.uint8)
    work = np.empty((2, groups.longest()), arithmetic.dtype)
    with np.errstate(all="ignore"):
        for run in groups.runs():
            elements = flat[run.elements]
            values = widen(elements, dtype) if dtype in FORMATS else elements
            codes = packed[run.elements] if bits == 8 else scratch[: run.length]
            grid = _encode(values, run, codes, bits, seed, arithmetic, work[:, : run.length])
            scales[run.groups], lows[run.groups] = grid.scale, grid.low
            if bits < 8:
                pack_codes(codes, bits, packed, run.start)


def _encode(
    values: Array, run: Run, codes: Array, bits: int, seed: int | None, arithmetic: Arithmetic, memory: Array
) -> Grid:
    """Write the codes of a run, and return what they stand for."""
    extent = Extent.of(values, run, bits, arithmetic)
    grid = Grid.of(extent, bits, FINEST if seed is None else 2**bits - 1, arithmetic)
    work, factor = memory
    run.spread(grid.low, work)
    np.subtract(values if extent.elements is None else extent.elements, work, out=work)
    if seed is None:
        run.spread(grid.inverse, factor)
        work *= factor
        work += values.dtype.type(arithmetic.magic)
        np.copyto(codes, work.view(f"u{work.itemsize}"), casting="unsafe")
        if bits < 8:
            if extent.special is not None:
                codes[np.repeat(extent.special, run.sizes)] *= np.uint8(FINEST // (2**bits - 1))
            coarsen(codes, bits)
    else:
        # In units of 2**-16 of a scale, scaled down a little so that rounding errors cannot carry the largest
        # element beyond the last code: whole number + 16 random bits, of which the upper half is the code.
        run.spread(grid.inverse * values.dtype.type(65536 * (1 - 2.0**-21)), factor)
        work *= factor
        fixed = factor.view(f"i{work.itemsize}")
        np.copyto(fixed, work, casting="unsafe")
        fixed += dither(group_keys(grid.low, grid.scale, seed), run)
        fixed >>= 16
        np.copyto(codes, fixed, casting="unsafe")
    if extent.special is not None and extent.special.any():
        place = np.flatnonzero(~np.isfinite(values))
        odd = values[place]
        codes[place] = 2**bits - SPECIALS + (odd > 0) + 2 * np.isnan(odd)
    return grid


def dequantize(body: Array, target: Array, dtype: str, groups: Groups, bits: int) -> None:
    """Fill ``target`` with the elements, as carrier bits, of any body at all; the inverse of :func:`quantize`."""
    scales, lows, packed = _sections(body, dtype, groups, bits)
    flat, number = target.reshape(-1), Arithmetic.of(dtype).dtype
    memory, first = np.empty((2, groups.longest()), number), 2**bits - SPECIALS
    with np.errstate(all="ignore"):
        for run in groups.runs():
            codes = unpack_codes(packed, bits, run.start, run.length)
            scale, elements = scales[run.groups], flat[run.elements]
            work, factor = memory[:, : run.length]
            np.copyto(work, codes)
            run.spread(np.abs(scale), factor)
            work *= factor
            run.spread(lows[run.groups], factor)
            work += factor
            elements[:] = narrow(work, dtype) if dtype in FORMATS else work
            special = np.signbit(scale)
            if special.any():
                place = np.flatnonzero((codes >= first) & np.repeat(special, run.sizes))
                numbers = np.array([-np.inf, np.inf, np.nan], number)
                numbers = narrow(numbers, dtype) if dtype in FORMATS else numbers
                elements[place] = numbers[codes[place] - first]


def _sections(body: Array, dtype: str, groups: Groups, bits: int) -> tuple[Array, Array, Array]:
    table, _, _ = section_nbytes(dtype, groups, bits)
    number = Arithmetic.of(dtype).dtype
    return body[:table].view(number), body[table : 2 * table].view(number), body[2 * table :]


def error_bounds(
    values: Array, run: Run, bits: int, is_stochastic: bool, arithmetic: Arithmetic, narrowed: FloatFormat | None
) -> Array:
    """Return the largest error of each element, in ``float64``.

    With R the range, M the largest magnitude and u the roundoff: subtracting, scaling and the inverse lose at most
    4u of R, the scale and its product 5u of R, the last sum u of M; 16u (R + M) covers them and their products. Even
    a thread that flushes subnormals to zero loses no more than ten times the smallest normal number on top.

    Args:
        is_stochastic: whether rounding to a code can lose a scale; to nearest that is half of one, and half of one of
            8 bits for rounding twice.
        narrowed: the format that the results are rounded to, if that is not the one that is computed in.
    """
    # Of more bits, so that the range is that of the elements where a single code is left.
    extent = Extent.of(values, run, 8, arithmetic)
    scale = np.abs(Grid.of(extent, bits, FINEST, arithmetic).scale).astype(np.float64)
    share = 1.0 if is_stochastic else 0.5 if bits == 8 else 0.5 * (1 + (2**bits - 1) / FINEST)
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
