"""Affine quantization per group of neighbours, on one block of groups at a time; ``native/affine.c`` does the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.kernels.dither import dither, group_keys
from tensorstash.kernels.floats import FORMATS, FloatFormat, narrow, widen
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.masks import packed_nbytes

FINEST = 255  # the largest code of 8 bits; fewer bits are codes of 8 bits, rounded once more
SPECIALS = 3
"""Codes that groups with numbers that are not finite give up, the last ones: minus infinity, infinity and NaN."""
COARSENING: Mapping[int, tuple[int, int]] = MappingProxyType({4: (15, 135), 2: (3, 129)})
"""By bits, a factor and a summand that make 256 times the nearest code, and a rest, of one of 8 bits."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The limits of the format of the arithmetic."""

    dtype: str
    roundoff: float  # the largest relative error of an operation
    magic: float  # adding it rounds to a whole number, whose bits are then the lowest of the sum
    limit: float  # finite elements beyond it become it: the range of a group could overflow
    least: float  # a group of a smaller range is taken as constant: its scale would not be a normal number

    @classmethod
    def of(cls, dtype: str) -> "Arithmetic":
        """Return the arithmetic of a dtype: ``float64`` in itself, anything else in ``float32``."""
        if dtype == "float64":
            return cls("float64", 2.0**-53, 1.5 * 2.0**52, 2.0**1022, 2.0**-1000)
        return cls("float32", 2.0**-24, 1.5 * 2.0**23, 2.0**126, 2.0**-100)


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that the finite elements of each group are rounded to: ``low + code * abs(scale)``."""

    low: Array  # the smallest finite element, never -0
    scale: Array  # 0 for constant groups; the sign bit is set where SPECIALS are
    inverse: Array  # codes per unit; 0 where the scale is

    @classmethod
    def of(cls, extent: "Extent", bits: int, highest: int, arithmetic: Arithmetic) -> "Grid":
        """Return the grids of groups; ``inverse`` leads to the code ``highest``, where :data:`SPECIALS` take none."""
        number = extent.low.dtype.type
        span = extent.high - extent.low
        scale, inverse = span / number(FINEST), number(highest) / span
        scale *= number(FINEST // (2**bits - 1))
        if extent.special is not None:
            rest = number(2**bits - 1 - SPECIALS)
            scale = np.where(extent.special, span / rest, scale)
            inverse = np.where(extent.special, rest / span, inverse)
        if not span.min() >= arithmetic.least:
            is_wide = span >= arithmetic.least
            scale, inverse = np.where(is_wide, scale, number(0)), np.where(is_wide, inverse, number(0))
        if extent.special is not None:
            np.negative(scale, out=scale, where=extent.special)
        return cls(extent.low + number(0), scale, inverse)


@dataclass(frozen=True, slots=True)
class Extent:
    """The smallest and the largest finite element of each group; 0 where there is none."""

    low: Array
    high: Array
    special: Array | None = None  # groups that hold a NaN or an infinity; None if none does
    elements: Array | None = None  # rounded in place of the elements: held to the limit, and finite

    @classmethod
    def of(cls, values: Array, bits: int, arithmetic: Arithmetic) -> "Extent":
        """Return the extent of every group, each a row of a matrix."""
        low, high = values.min(axis=1), values.max(axis=1)
        limit = values.dtype.type(arithmetic.limit)
        if low.min() >= -limit and high.max() <= limit:
            return cls(low, high)
        finite = np.isfinite(values)
        held = np.clip(values, -limit, limit)
        low, high = held.min(axis=1, initial=np.inf, where=finite), held.max(axis=1, initial=-np.inf, where=finite)
        special: Array = np.logical_not(finite.all(axis=1))
        low[low == np.inf] = high[high == -np.inf] = 0
        if bits == 2:  # a single code is left
            middle = low + (high - low) / 2
            low, high = np.where(special, middle, low), np.where(special, middle, high)
        return cls(low, high, special, np.where(finite, held, low[:, None]))


def coarsen(codes: Array, bits: int) -> None:
    """Replace codes of 8 bits by the nearest of 4 or 2, of which 0 and the largest stand for the same."""
    # A code of 4 bits is worth 17 of 8 bits, one of 2 bits 85; both are odd, so that there are no ties.
    factor, half = map(np.uint16, COARSENING[bits])
    codes[...] = (codes * factor + half) >> np.uint16(8)


def pack_codes(codes: Array, bits: int, packed: Array) -> None:
    """Fill bytes with codes, each ``uint8`` and below ``2**bits``, of 2 or 4 bits."""
    per_byte = 8 // bits
    columns = np.pad(codes, (0, -codes.size % per_byte)).reshape(-1, per_byte)
    packed[:] = 0
    for place in range(per_byte):
        packed |= columns[:, place] << np.uint8(bits * place)


def unpack_codes(packed: Array, bits: int, count: int) -> Array:
    """Return ``count`` codes of 2 or 4 bits as ``uint8``; the inverse of :func:`pack_codes`."""
    columns = np.empty((packed.size, 8 // bits), np.uint8)
    for place in range(8 // bits):
        columns[:, place] = (packed >> np.uint8(bits * place)) & np.uint8(2**bits - 1)
    return columns.reshape(-1)[:count]


def section_nbytes(dtype: str, groups: Groups, bits: int) -> tuple[int, int, int]:
    """Return the bytes that the scales, the lows and the packed codes of a tensor take."""
    table = groups.count * np.dtype(Arithmetic.of(dtype).dtype).itemsize
    return table, table, packed_nbytes(groups.rows * groups.length, bits)


def quantize(source: Array, body: Array, dtype: str, groups: Groups, bits: int, seed: int | None) -> None:
    """Fill ``body`` with the scales, the lows and the packed codes of a tensor, which is given as carrier bits.

    ``seed`` is a word of :func:`~tensorstash.kernels.dither.seed_word`; None rounds to nearest.
    """
    scales, lows, packed = _sections(body, dtype, groups, bits)
    arithmetic, shape = Arithmetic.of(dtype), (groups.rows, groups.length)
    elements, codes = source.reshape(shape), (packed if bits == 8 else np.empty(source.size, np.uint8)).reshape(shape)
    with np.errstate(all="ignore"):
        for block in groups.blocks():
            noise = None if seed is None else (seed, block.places(groups.length))
            grid, found = _encode(widened(block.elements(elements), dtype), bits, noise, arithmetic)
            block.put(found, codes)
            for table, each in ((scales, grid.scale), (lows, grid.low)):
                table[block.rows, block.groups] = each.reshape(-1, block.groups.stop - block.groups.start)
    if bits < 8:
        pack_codes(codes.reshape(-1), bits, packed)


def widened(elements: Array, dtype: str) -> Array:
    """Return elements, as carrier bits, in the format of the arithmetic."""
    return widen(elements.reshape(-1), dtype).reshape(elements.shape) if dtype in FORMATS else elements


def _encode(values: Array, bits: int, noise: tuple[int, Array] | None, arithmetic: Arithmetic) -> tuple[Grid, Array]:
    """Return the codes of groups, and their values; noise has the seed, and the places of the elements."""
    extent = Extent.of(values, bits, arithmetic)
    grid = Grid.of(extent, bits, FINEST if noise is None else 2**bits - 1, arithmetic)
    number = values.dtype.type
    above = (values if extent.elements is None else extent.elements) - grid.low[:, None]
    if noise is None:
        sums = above * grid.inverse[:, None] + number(arithmetic.magic)
        codes = sums.view(f"u{sums.itemsize}").astype(np.uint8)
        if bits < 8:
            if extent.special is not None:
                codes[extent.special] *= np.uint8(FINEST // (2**bits - 1))
            coarsen(codes, bits)
    else:
        # In units of 2**-16 of a scale, scaled down a little so that rounding errors cannot carry the largest
        # element beyond the last code: whole number + 16 random bits, of which the upper half is the code.
        seed, places = noise
        fixed = (above * (grid.inverse * number(65536 * (1 - 2.0**-21)))[:, None]).astype(f"i{values.itemsize}")
        fixed += dither(group_keys(grid.low, grid.scale, seed), places)
        codes = (fixed >> 16).astype(np.uint8)
    if extent.special is not None and extent.special.any():
        odd = ~np.isfinite(values)
        codes[odd] = 2**bits - SPECIALS + (values[odd] > 0) + 2 * np.isnan(values[odd])
    return grid, codes


def dequantize(body: Array, target: Array, dtype: str, groups: Groups, bits: int) -> None:
    """Fill ``target`` with the elements, as carrier bits, of any body at all; the inverse of :func:`quantize`."""
    scales, lows, packed = _sections(body, dtype, groups, bits)
    number, first, shape = Arithmetic.of(dtype).dtype, 2**bits - SPECIALS, (groups.rows, groups.length)
    codes = (packed if bits == 8 else unpack_codes(packed, bits, target.size)).reshape(shape)
    elements = target.reshape(shape)
    with np.errstate(all="ignore"):
        for block in groups.blocks():
            some = block.elements(codes)
            scale, low = (table[block.rows, block.groups].reshape(-1, 1) for table in (scales, lows))
            values = _narrowed(some.astype(number) * np.abs(scale) + low, dtype)
            special = np.signbit(scale)
            if special.any():
                odd = (some >= first) & special
                values[odd] = _narrowed(np.array([-np.inf, np.inf, np.nan], number), dtype)[some[odd] - first]
            block.put(values, elements)


def _narrowed(values: Array, dtype: str) -> Array:
    return narrow(values.reshape(-1), dtype).reshape(values.shape) if dtype in FORMATS else values


def _sections(body: Array, dtype: str, groups: Groups, bits: int) -> tuple[Array, Array, Array]:
    """Return the tables of scales and lows, a row for each row of the groups, and the packed codes."""
    table, _, _ = section_nbytes(dtype, groups, bits)
    tables = body[: 2 * table].view(Arithmetic.of(dtype).dtype).reshape(2, groups.rows, groups.per_row)
    return tables[0], tables[1], body[2 * table :]


def error_bounds(
    values: Array, bits: int, is_stochastic: bool, arithmetic: Arithmetic, narrowed: FloatFormat | None
) -> Array:
    """Return the largest error of each element of groups, the rows of a matrix, in ``float64``.

    With R the range, M the largest magnitude and u the roundoff: subtracting, scaling and the inverse lose at most
    4u of R, the scale and its product 5u of R, the last sum u of M; 16u (R + M) covers them and their products. Even
    a thread that flushes subnormals to zero loses no more than ten times the smallest normal number on top. Rounding to
    nearest loses half of a scale, and half of one of 8 bits for rounding twice.
    """
    # Of more bits, so that the range is that of the elements where a single code is left.
    extent = Extent.of(values, 8, arithmetic)
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
    beyond = np.maximum(np.abs(values.astype(np.float64)) - arithmetic.limit, 0)
    return np.where(np.isfinite(values), np.where(span > 0, bound, 0.0)[:, None] + beyond, 0.0)
