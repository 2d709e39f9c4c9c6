"""Affine quantization and digests on devices, in Triton: each kernel reads its input once and writes its output once.

Quantization agrees with the NumPy codec bit for bit. For that, divisions are rounded to nearest, products and sums are
not fused, minima and maxima are taken of integers in the order of the floats, and ``bfloat16`` is rounded by integer
arithmetic.
"""

# mypy: ignore-errors
# Triton compiles most of these functions; to a type checker of Python they mean nothing.

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2
from triton.language import constexpr

from tensorstash.kernels.dither import GOLDEN
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.quantize import COARSENING, FINEST, SPECIALS, Arithmetic

TILE = 4096
"""Elements, or words, that a program works on."""

OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
"""Of every launch: a product and a sum are rounded one after the other, as NumPy does it."""

MAX = constexpr(0x7FFFFFFF)
MIN = constexpr(-0x80000000)
INFINITY = constexpr(0x7F800000)
_LONGEST = 4 * TILE  # elements of the longest group that a program works on as a whole

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
    """Write the payload of :class:`~tensorstash.codecs.affine.Affine`, all of its bytes, for contiguous floats.

    ``seed`` is the word of stochastic rounding; None for rounding to nearest.
    """
    _launch(_quantize, dense, groups, bits, payload, seed or 0, STOCHASTIC=seed is not None)


def dequantize(payload: Tensor, dense: Tensor, groups: Groups, bits: int):
    """Write the elements that a payload of :func:`quantize` stands for, all of ``dense``."""
    _launch(_dequantize, dense, groups, bits, payload)


def _launch(kernel, dense: Tensor, groups: Groups, bits: int, *others: Tensor | int, **known: bool):
    raw = dense.reshape(-1).view(torch.int32 if dense.itemsize == 4 else torch.int16)
    longest = min(groups.size, groups.length)
    width = max(next_power_of_2(longest), 8)
    tall = max(TILE // width, 1)
    is_whole = longest == width and groups.length % longest == 0
    kernel[(cdiv(groups.count, tall),)](
        raw, *others, groups.count, groups.per_row, groups.length, groups.size,
        TALL=tall, WIDTH=width, WHOLE=is_whole, BITS=bits, DTYPE=_FLOATS[dense.dtype], **known, **OPTIONS,
    )  # fmt: skip


def digest(words: Tensor, multiplier: int) -> Tensor:
    """Return an ``int64`` that depends on every word and its place, on the current device, where the words are."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    if count := words.numel():
        _add[(cdiv(count, TILE),)](words, total, count, MULTIPLIER=multiplier, SIZE=TILE, num_warps=8)
    return total


@triton.jit(do_not_specialize=["count"])
def _add(words, total, count, MULTIPLIER: tl.constexpr, SIZE: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mixed = tl.load(words + places, mask=places < count, other=0).to(tl.int64)
    mixed = mixed * ((places * MULTIPLIER) | 1)  # words beyond the end are zeros, and add nothing
    mixed = (mixed ^ (mixed >> 29)) * MULTIPLIER
    tl.atomic_add(total, tl.sum(mixed ^ (mixed >> 32)))


@triton.jit(do_not_specialize=["seed"])
def _quantize(
    source, payload, seed, count, per_row, length, size, TALL: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
    BITS: tl.constexpr, DTYPE: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    group, there, place, mask, at, inside = _cut(count, per_row, length, size, TALL, WIDTH, WHOLE, BITS)
    values = _load(source + place, mask, DTYPE)
    order = _order(values)
    low = _float(tl.min(tl.where(mask, order, MAX), axis=1))
    high = _float(tl.max(tl.where(mask, order, MIN), axis=1))
    special = there & False
    held = values
    highest: tl.constexpr = 2**BITS - 1 if STOCHASTIC else _FINEST
    levels = tl.full([TALL], highest, tl.float32)
    usual = tl.min((~there | ((low >= -_LIMIT) & (high <= _LIMIT))).to(tl.int32), axis=0)
    if usual == 0:
        finite = mask & (tl.abs(values) < _INFINITE)
        held = tl.where(values > _LIMIT, _LIMIT, tl.where(values < -_LIMIT, -_LIMIT, values))
        order = _order(held)
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
    tables = payload.to(tl.pointer_type(tl.float32))
    tl.store(tables + group, scale, mask=there)
    tl.store(tables + count + group, low, mask=there)
    # Codes side by side, the first in the lowest bits of its byte.
    codes = tl.reshape(tl.where(mask, codes, 0), [TALL, WIDTH * BITS // 8, 8 // BITS])
    packed = tl.sum(codes << (tl.arange(0, 8 // BITS) * BITS)[None, None, :], axis=2)
    tl.store(payload + at, packed.to(tl.uint8), mask=inside)


@triton.jit
def _dequantize(
    target, payload, count, per_row, length, size, TALL: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
    BITS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    group, there, place, mask, at, inside = _cut(count, per_row, length, size, TALL, WIDTH, WHOLE, BITS)
    tables = payload.to(tl.pointer_type(tl.float32))
    scale = tl.load(tables + group, mask=there, other=0.0)
    low = tl.load(tables + count + group, mask=there, other=0.0)
    packed = tl.load(payload + at, mask=inside, other=0).to(tl.int32)
    codes = packed[:, :, None] >> (tl.arange(0, 8 // BITS) * BITS)[None, None, :]
    codes = tl.reshape(codes & (2**BITS - 1), [TALL, WIDTH])
    values = codes.to(tl.float32) * tl.abs(scale)[:, None] + low[:, None]
    special = scale.to(tl.int32, bitcast=True) < 0
    if tl.max(special.to(tl.int32), axis=0) > 0:
        bits = tl.where(codes == 2**BITS - 1, _NAN, INFINITY)
        bits = tl.where(codes == 2**BITS - _SPECIALS, bits | MIN, bits)
        odd = special[:, None] & (codes >= 2**BITS - _SPECIALS)
        values = tl.where(odd, bits.to(tl.float32, bitcast=True), values)
    _store(target + place, values, mask, DTYPE)


@triton.jit
def _cut(
    count, per_row, length, size, TALL: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, BITS: tl.constexpr
):
    """Return the groups of this program, their elements, and their codes in the payload; each with which exist."""
    group = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = group < count
    column = tl.arange(0, WIDTH)[None, :]
    byte = tl.arange(0, WIDTH * BITS // 8)[None, :]
    if WHOLE:  # else the compiler would not see that neighbours can be read together
        start = group * WIDTH
        mask = there[:, None] & (column >= 0)
        inside = there[:, None] & (byte >= 0)
    else:
        start = group // per_row * length + group % per_row * size
        width = tl.minimum(length - group % per_row * size, size)[:, None]
        mask = there[:, None] & (column < width)
        inside = there[:, None] & (byte < (width * BITS + 7) // 8)
    first = 8 * count + start * BITS // 8
    return group, there, start[:, None] + column, mask, first[:, None] + byte, inside


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
def _order(values):
    """Return integers in the order of floats."""
    order = values.to(tl.int32, bitcast=True)
    return order ^ ((order >> 31) & MAX)


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
