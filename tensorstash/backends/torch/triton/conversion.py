"""Floats in another format, in Triton, by integer arithmetic: the same on devices with and without such a format."""

# mypy: ignore-errors
# Triton compiles most of these functions; to a type checker of Python they mean nothing.

# Triton has to see annotations as text, so that they can be read where it is not installed.
from __future__ import annotations

import torch
from torch import Tensor

from tensorstash.backends.torch.triton.language import INFINITY, MAX, MIN, OPTIONS, TILE, cdiv, jit, tl
from tensorstash.kernels.floats import FORMATS

_RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_NAMES = {torch.float32: None} | {
    getattr(torch, name): (form.nbits, form.mantissa, form.exponent, form.overflow, form.nan)
    for name, form in FORMATS.items()
    if hasattr(torch, name)
}


def convert(source: Tensor, target: Tensor):
    """Write floats in another format, rounded to nearest even, by way of ``float32``."""
    count = source.numel()
    grid = (cdiv(count, TILE),)
    _convert[grid](
        _raw(source), _raw(target), count, _NAMES[source.dtype], _NAMES[target.dtype], TILE, **OPTIONS
    )  # fmt: skip


def _raw(floats: Tensor) -> Tensor:
    return floats.reshape(-1).view(_RAW[floats.itemsize])


@jit
def _convert(source, target, count, FROM: tl.constexpr, TO: tl.constexpr, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = place < count
    raw = tl.load(source + place, mask=mask, other=0).to(tl.int32)
    raw = raw if FROM is None else _widen(raw, FROM)
    tl.store(target + place, raw if TO is None else _narrow(raw, TO), mask=mask)


@jit
def _narrow(raw, FORMAT: tl.constexpr):
    """Return the bits of ``float32`` bits in a narrow format: what :func:`tensorstash.kernels.floats.narrow` does."""
    nbits: tl.constexpr = FORMAT[0]
    mantissa: tl.constexpr = FORMAT[1]
    exponent: tl.constexpr = FORMAT[2]
    overflow: tl.constexpr = FORMAT[3]
    nan: tl.constexpr = FORMAT[4]
    magnitude = raw & MAX
    sign = (raw >> 31) & (1 << (nbits - 1))
    rounded = _rounded(magnitude, 23 - mantissa)
    if exponent != -126:
        rounded = rounded - ((exponent + 126) << mantissa)
        magic = tl.full([], 2.0 ** (exponent - mantissa + 23), tl.float32)
        small = (magnitude.to(tl.float32, bitcast=True) + magic).to(tl.int32, bitcast=True)
        small = small - magic.to(tl.int32, bitcast=True)
        small = tl.minimum(tl.maximum(small, 0), 1 << mantissa)
        rounded = tl.minimum(tl.maximum(rounded, small), overflow)
    return tl.where(magnitude > INFINITY, nan, rounded) | sign


@jit
def _rounded(raw, DROP: tl.constexpr):
    # The magnitude of a NaN would run over into the sign; what becomes of it means nothing.
    return (raw + ((1 << (DROP - 1)) - 1) + ((raw >> DROP) & 1)) >> DROP


@jit
def _widen(raw, FORMAT: tl.constexpr):
    """Return the ``float32`` bits of sign-extended bits: what :func:`tensorstash.kernels.floats.widen` does."""
    nbits: tl.constexpr = FORMAT[0]
    mantissa: tl.constexpr = FORMAT[1]
    exponent: tl.constexpr = FORMAT[2]
    drop: tl.constexpr = 23 - mantissa
    highest: tl.constexpr = (1 << (nbits - 1)) - 1
    # Without an infinity, only the NaN is special.
    special: tl.constexpr = FORMAT[4] if FORMAT[3] == FORMAT[4] - 1 else FORMAT[3]
    wide = raw << drop
    if exponent != -126:
        wide = wide & (MIN | (highest << drop))
        based = wide.to(tl.float32, bitcast=True) * tl.full([], 2.0 ** (exponent + 126), tl.float32)
        wide = tl.where((raw & highest) >= special, wide | INFINITY, based.to(tl.int32, bitcast=True))
    return wide
