"""Conversion between ``float32`` and narrower floats, on carrier bits, rounded to nearest even as frameworks do."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import frexp
from types import MappingProxyType

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import BLOCK
from tensorstash.spec import DTYPES


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format."""

    nbits: int
    mantissa: int  # stored bits of the fraction
    exponent: int  # lowest of a normal number
    largest: float  # of the finite numbers
    overflow: int  # bits of the result for larger numbers, and of infinity
    nan: int  # bits of the NaN that NaNs become

    @property
    def roundoff(self) -> float:
        """Largest relative error of rounding to a normal number."""
        return 2.0 ** -(self.mantissa + 1)

    @property
    def smallest(self) -> float:
        """Smallest positive number, a subnormal."""
        return 2.0 ** (self.exponent - self.mantissa)

    @property
    def threshold(self) -> float:
        """Half way from the largest finite number to the number that would be next."""
        return self.largest + 2.0 ** (frexp(self.largest)[1] - 1) * self.roundoff

    @property
    def saturates(self) -> bool:
        """Whether the format has no infinity, so that a number too large becomes its largest."""
        return self.overflow == self.nan - 1


_FLOAT32_EXPONENT = -126

FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {
        "bfloat16": FloatFormat(16, 7, -126, (2 - 2.0**-7) * 2.0**127, 0x7F80, 0x7FC0),
        "float16": FloatFormat(16, 10, -14, 65504.0, 0x7C00, 0x7E00),
        "float8_e4m3fn": FloatFormat(8, 3, -6, 448.0, 0x7E, 0x7F),
        "float8_e5m2": FloatFormat(8, 2, -14, 57344.0, 0x7C, 0x7F),
    }
)
"""The narrow formats, by dtype name."""

_INFINITY = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)


def narrow(values: Array, dtype: str) -> Array:
    """Return flat ``float32`` values rounded to the nearest number of ``dtype``, ties to even, as its carrier.

    Numbers beyond the range become infinity, or 448 in ``float8_e4m3fn``. NaNs stay NaN and keep their sign.
    """
    target = FORMATS[dtype]
    raw = values.view(np.uint32)
    if target.exponent == _FLOAT32_EXPONENT:
        rounded = _rounded(raw, 23 - target.mantissa)
    else:
        rounded = _rebased(raw & _MAGNITUDE, target)
        sign = raw >> np.uint32(31)
        sign <<= np.uint32(target.nbits - 1)
        rounded |= sign
    if values.size and np.isnan(values.max()):
        sign = raw >> np.uint32(31) << np.uint32(target.nbits - 1)
        np.copyto(rounded, sign | np.uint32(target.nan), where=np.isnan(values))
    return rounded.astype(f"u{target.nbits // 8}").view(DTYPES[dtype].carrier)


def convert(source: Array, dtype: str, target: Array, wanted: str) -> None:
    """Fill a flat array with floats in another format; ``float64`` becomes ``float32`` first, as in frameworks."""
    with np.errstate(all="ignore"):
        for start in range(0, source.size, BLOCK):
            block = source[start : start + BLOCK]
            values = widen(block, dtype) if dtype in FORMATS else block.astype(np.float32, copy=False)
            target[start : start + BLOCK] = narrow(values, wanted) if wanted in FORMATS else values


def _rounded(raw: Array, drop: int) -> Array:
    """Return the bits without the lowest ``drop``, to nearest even; a carry into the exponent is right as it is."""
    rounded = raw >> np.uint32(drop)
    rounded &= np.uint32(1)
    rounded += raw
    rounded += np.uint32((1 << (drop - 1)) - 1)
    rounded >>= np.uint32(drop)
    return rounded


def _rebased(magnitude: Array, target: FloatFormat) -> Array:
    """Return the bits of magnitudes in a format of a smaller exponent; those of NaNs mean nothing."""
    normal = _rounded(magnitude, 23 - target.mantissa).view(np.int32)
    normal -= np.int32((target.exponent - _FLOAT32_EXPONENT) << target.mantissa)
    # Adding a power of two whose last place is the smallest subnormal makes the hardware round to that place, and
    # leaves the result in the lowest bits.
    magic = np.float32(2.0 ** (target.exponent - target.mantissa + 23))
    subnormal = (magnitude.view(np.float32) + magic).view(np.int32)
    subnormal -= magic.view(np.int32)
    # Each result is the larger one in its own range, once the other is held to the smallest normal number.
    # (Between two scalars NumPy clips with vector instructions, below one it does not.)
    np.clip(subnormal, np.int32(0), np.int32(1 << target.mantissa), out=subnormal)
    np.maximum(normal, subnormal, out=normal)
    return np.clip(normal, np.int32(0), np.int32(target.overflow), out=normal).view(np.uint32)


def widen(bits: Array, dtype: str) -> Array:
    """Return the exact ``float32`` values of flat carrier bits; NaNs keep their sign and their payload."""
    source = FORMATS[dtype]
    bits = bits.view(f"u{source.nbits // 8}")
    drop = 23 - source.mantissa
    if source.exponent == _FLOAT32_EXPONENT:
        raw = bits.astype(np.uint32)
        raw <<= np.uint32(drop)
        return raw.view(np.float32)
    highest = (1 << (source.nbits - 1)) - 1
    # Widening as signed integers carries the sign to the top; multiplying rebases the exponent, of subnormals too,
    # without rounding.
    raw = bits.view(f"i{bits.itemsize}").astype(np.int32).view(np.uint32)
    raw <<= np.uint32(drop)
    raw &= np.uint32(0x80000000 | highest << drop)
    values: Array = raw.view(np.float32) * np.float32(2.0 ** (source.exponent - _FLOAT32_EXPONENT))
    special = (bits & bits.dtype.type(highest)) >= (source.nan if source.saturates else source.overflow)
    if special.any():
        np.copyto(values.view(np.uint32), raw | _INFINITY, where=special)
    return values
