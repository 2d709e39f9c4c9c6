"""Affine quantization on devices, in Triton: each kernel reads its input once and writes its output once.

It agrees with the NumPy codec bit for bit. For that, divisions are rounded to nearest, products and sums are not fused,
minima and maxima are taken of integers in the order of the floats, and ``bfloat16`` is rounded by integer arithmetic.
"""

# mypy: ignore-errors
# Triton compiles most of these functions; to a type checker of Python they mean nothing.

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2
from triton.language import constexpr

from tensorstash.kernels.bits import COARSENING
from tensorstash.kernels.dither import GOLDEN
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.quantize import FINEST, SPECIALS, Arithmetic

TILE = 4096
"""Elements that a program works on."""

OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
"""Of every launch: a product and a sum are rounded one after the other, as NumPy does it."""

MAX = constexpr(0x7FFFFFFF)
MIN = constexpr(-0x80000000)
INFINITY = constexpr(0x7F800000)
_LONGEST = 4 * TILE
"""Elements of the longest group that a program works on as a whole."""

_FLOATS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_ARITHMETIC = Arithmetic.of("float32")
_LIMIT = constexpr(_ARITHMETIC.limit)
_LEAST = constexpr(_ARITHMETIC.least)
_MAGIC = constexpr(_ARITHMETIC.magic)
_SPECIALS = constexpr(SPECIALS)
_FINEST = constexpr(FINEST)
_FOUR, _HALF_FOUR = map(constexpr, COARSENING[4])
_TWO, _HALF_TWO = map(constexpr, COARSENING[2])
_GOLDEN = constexpr(GOLDEN)
_NOISE_UNIT = constexpr(65536 * (1 - 2.0**-21))
_INFINITE = constexpr(float("inf"))
_NAN = constexpr(0x7FC00000)


def fits(groups: Groups, bits: int, dtype: torch.dtype) -> bool:
    """Whether :func:`quantize` and :func:`dequantize` take groups like these: whole bytes, and not too long."""
    is_whole = groups.size * bits % 8 == 0 and (groups.length * bits % 8 == 0 or groups.rows == 1)
    in_bytes = is_whole or groups.count == 1
    return dtype in _FLOATS and in_bytes and min(groups.size, groups.length) <= _LONGEST


def quantize(dense: Tensor, payload: Tensor, groups: Groups, bits: int, seed: int | None):
    """Write the payload of :class:`~tensorstash.codecs.affine.Affine`.

    Args:
        dense: contiguous floats of a type that :func:`fits`.
        payload: bytes, all of which are written.
        groups: how ``dense`` is cut.
        bits: of a code.
        seed: word of stochastic rounding; None for rounding to nearest.
    """
    grid, tile = _tiles(groups, bits)
    _quantize[grid](
        _raw(dense), payload, 0 if seed is None else seed, *_numbers(groups), **tile,
        DTYPE=_FLOATS[dense.dtype], STOCHASTIC=seed is not None, **OPTIONS,
    )  # fmt: skip


def dequantize(payload: Tensor, dense: Tensor, groups: Groups, bits: int):
    """Write the elements that a payload of :func:`quantize` stands for, all of ``dense``."""
    grid, tile = _tiles(groups, bits)
    _dequantize[grid](payload, _raw(dense), *_numbers(groups), **tile, DTYPE=_FLOATS[dense.dtype], **OPTIONS)


def _raw(floats: Tensor) -> Tensor:
    return floats.reshape(-1).view(torch.int32 if floats.itemsize == 4 else torch.int16)


def _numbers(groups: Groups) -> tuple[int, int, int, int]:
    return groups.count, groups.per_row, groups.length, groups.size


def _tiles(groups: Groups, bits: int) -> tuple[tuple[int], dict[str, object]]:
    longest = min(groups.size, groups.length)
    width = max(next_power_of_2(longest), 8)
    tall = max(TILE // width, 1)
    whole = longest == width and groups.length % longest == 0
    return (cdiv(groups.count, tall),), {"TALL": tall, "WIDTH": width, "WHOLE": whole, "BITS": bits}


@triton.jit(do_not_specialize=["seed"])
def _quantize(
    source,
    payload,
    seed,
    count,
    per_row,
    length,
    size,
    TALL: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    BITS: tl.constexpr,
    DTYPE: tl.constexpr,
    STOCHASTIC: tl.constexpr,
):
    group, there, start, place, mask = _cut(count, per_row, length, size, TALL, WIDTH, WHOLE)
    values = _load(source + place, mask, DTYPE)
    order = values.to(tl.int32, bitcast=True)
    order = order ^ ((order >> 31) & MAX)
    low = _float(tl.min(_chosen(mask, order, MAX, WHOLE), axis=1))
    high = _float(tl.max(_chosen(mask, order, MIN, WHOLE), axis=1))
    special = there & False
    held = values
    highest: tl.constexpr = 2**BITS - 1 if STOCHASTIC else _FINEST
    levels = tl.full([TALL], highest, tl.float32)
    usual = tl.min((~there | ((low >= -_LIMIT) & (high <= _LIMIT))).to(tl.int32), axis=0)
    if usual == 0:
        finite = mask & (tl.abs(values) < _INFINITE)
        held = tl.where(values > _LIMIT, _LIMIT, tl.where(values < -_LIMIT, -_LIMIT, values))
        order = held.to(tl.int32, bitcast=True)
        order = order ^ ((order >> 31) & MAX)
        smallest = tl.min(tl.where(finite, order, MAX), axis=1)
        largest = tl.max(tl.where(finite, order, MIN), axis=1)
        low = tl.where(smallest > largest, 0.0, _float(smallest))
        high = tl.where(smallest > largest, 0.0, _float(largest))
        special = tl.max((mask & ~finite).to(tl.int32), axis=1) > 0
        if BITS == 2:
            middle = low + (high - low) * 0.5
            low = tl.where(special, middle, low)
            high = tl.where(special, middle, high)
        held = tl.where(finite, held, low[:, None])
        levels = tl.where(special, 2.0**BITS - 1 - _SPECIALS, levels)
    span = high - low
    low = tl.where(low == 0, 0.0, low)
    coarse = ~(span >= _LEAST)
    usual_scale = tl.div_rn(span, tl.full([TALL], _FINEST, tl.float32)) * (_FINEST // (2**BITS - 1))
    scale = tl.where(coarse, 0.0, tl.where(special, tl.div_rn(span, levels), usual_scale))
    inverse = tl.where(coarse, 0.0, tl.div_rn(levels, span))
    # Not -scale, which is 0 - scale, so that 0 would not get its sign.
    scale = (scale.to(tl.int32, bitcast=True) | tl.where(special, MIN, 0)).to(tl.float32, bitcast=True)
    if STOCHASTIC:
        keys = _mix(_mix(_word(scale) ^ seed.to(tl.uint32)) + _word(low))
        fixed = ((held - low[:, None]) * (inverse * _NOISE_UNIT)[:, None]).to(tl.int32)
        words = _mix(keys[:, None] + (place >> 1).to(tl.uint32) * _GOLDEN)
        dither = (words >> ((place & 1) * 16).to(tl.uint32)) & 0xFFFF
        codes = (fixed + dither.to(tl.int32)) >> 16
    else:
        sums = (held - low[:, None]) * inverse[:, None] + _MAGIC
        codes = sums.to(tl.int32, bitcast=True) & 0xFF
        if BITS < 8:
            coarse_codes = codes * _FOUR + _HALF_FOUR if BITS == 4 else codes * _TWO + _HALF_TWO
            codes = tl.where(special[:, None], codes, coarse_codes >> 8)
    if usual == 0:
        odd = 2**BITS - _SPECIALS + (values > 0).to(tl.int32) + 2 * (values != values).to(tl.int32)
        codes = tl.where(tl.abs(values) < _INFINITE, codes, odd)
    codes = _chosen(mask, codes, 0, WHOLE)
    tables = payload.to(tl.pointer_type(tl.float32))
    tl.store(tables + group, scale, mask=there)
    tl.store(tables + count + group, low, mask=there)
    at, inside = _bytes(count, start, length, size, group, there, WIDTH, WHOLE, BITS, per_row)
    tl.store(payload + at, _pack(codes, BITS).to(tl.uint8), mask=inside)


@triton.jit
def _dequantize(
    payload,
    target,
    count,
    per_row,
    length,
    size,
    TALL: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    BITS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    group, there, start, place, mask = _cut(count, per_row, length, size, TALL, WIDTH, WHOLE)
    tables = payload.to(tl.pointer_type(tl.float32))
    scale = tl.load(tables + group, mask=there, other=0.0)
    low = tl.load(tables + count + group, mask=there, other=0.0)
    at, inside = _bytes(count, start, length, size, group, there, WIDTH, WHOLE, BITS, per_row)
    codes = _unpack(tl.load(payload + at, mask=inside, other=0).to(tl.int32), BITS)
    values = codes.to(tl.float32) * tl.abs(scale)[:, None] + low[:, None]
    special = scale.to(tl.int32, bitcast=True) < 0
    if tl.max(special.to(tl.int32), axis=0) > 0:
        bits = tl.where(codes == 2**BITS - 1, _NAN, INFINITY)
        bits = tl.where(codes == 2**BITS - _SPECIALS, bits | MIN, bits)
        odd = special[:, None] & (codes >= 2**BITS - _SPECIALS)
        values = tl.where(odd, bits.to(tl.float32, bitcast=True), values)
    _store(target + place, values, mask, DTYPE)


@triton.jit
def _cut(count, per_row, length, size, TALL: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """Return the groups of this program, which of them exist, where they start, and their elements."""
    group = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = group < count
    column = tl.arange(0, WIDTH)
    if WHOLE:
        start = group * WIDTH
        mask = there[:, None] & (column >= 0)[None, :]
    else:
        start = group // per_row * length + group % per_row * size
        width = tl.minimum(length - group % per_row * size, size)
        mask = there[:, None] & (column[None, :] < width[:, None])
    return group, there, start, start[:, None] + column[None, :], mask


@triton.jit
def _bytes(
    count, start, length, size, group, there,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr, BITS: tl.constexpr, per_row,
):  # fmt: skip
    """Return where in the payload the codes of this program are, and which of the places exist."""
    column = tl.arange(0, WIDTH * BITS // 8)
    first = 8 * count + start * BITS // 8
    if WHOLE:
        inside = there[:, None] & (column >= 0)[None, :]
    else:
        width = tl.minimum(length - group % per_row * size, size)
        inside = there[:, None] & (column[None, :] < (width * BITS + 7)[:, None] // 8)
    return first[:, None] + column[None, :], inside


@triton.jit
def _load(pointers, mask, DTYPE: tl.constexpr):
    raw = tl.load(pointers, mask=mask, other=0)
    if DTYPE == "bf16":
        values = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif DTYPE == "fp16":
        values = raw.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        values = raw.to(tl.float32, bitcast=True)
    return values


@triton.jit
def _store(pointers, values, mask, DTYPE: tl.constexpr):
    raw = values.to(tl.int32, bitcast=True)
    if DTYPE == "bf16":
        raw = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).to(tl.int16)
    elif DTYPE == "fp16":
        # Devices disagree about which NaN becomes of a NaN.
        narrow = values.to(tl.float16).to(tl.int16, bitcast=True)
        raw = tl.where(values != values, 0x7E00, narrow).to(tl.int16)
    tl.store(pointers, raw, mask=mask)


@triton.jit
def _chosen(mask, values, other, WHOLE: tl.constexpr):
    """Return the values where they exist; groups that do not exist at all are of no consequence."""
    if not WHOLE:
        values = tl.where(mask, values, other)
    return values


@triton.jit
def _float(order):
    return (order ^ ((order >> 31) & MAX)).to(tl.float32, bitcast=True)


@triton.jit
def _word(values):
    return values.to(tl.uint32, bitcast=True)


@triton.jit
def _mix(words):
    words = (words ^ (words >> 16)) * 0x7FEB352D
    words = (words ^ (words >> 15)) * 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def _pack(codes, BITS: tl.constexpr):
    """Return bytes of codes side by side along the last dimension, the first in the lowest bits."""
    if BITS == 2:
        codes = _paired(codes, 2)
    if BITS <= 4:
        codes = _paired(codes, 4)
    return codes


@triton.jit
def _paired(codes, SHIFT: tl.constexpr):
    lower, upper = tl.split(tl.reshape(codes, [codes.shape[0], codes.shape[1] // 2, 2]))
    return lower | (upper << SHIFT)


@triton.jit
def _unpack(codes, BITS: tl.constexpr):
    """Return the codes of bytes: the inverse of :func:`_pack`."""
    if BITS <= 4:
        codes = _parted(codes, 4)
    if BITS == 2:
        codes = _parted(codes, 2)
    return codes


@triton.jit
def _parted(codes, SHIFT: tl.constexpr):
    both = tl.join(codes & ((1 << SHIFT) - 1), codes >> SHIFT)
    return tl.reshape(both, [codes.shape[0], codes.shape[1] * 2])
