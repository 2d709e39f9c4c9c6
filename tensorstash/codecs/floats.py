"""Conversion between ``float32`` and narrower floats, on carrier bits, rounded to nearest even as frameworks do."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import frexp
from types import MappingProxyType

import numpy as np

from tensorstash.buffers import Array
from tensorstash.spec import DTYPES


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format.

    Args:
        nbits: width of an element.
        mantissa: stored bits of the fraction.
        exponent: lowest exponent of a normal number.
        largest: largest finite number.
        overflow: bits of what larger numbers become, and of infinity.
        nan: bits of the NaN that NaNs become.
    """

    nbits: int
    mantissa: int
    exponent: int
    largest: float
    overflow: int
    nan: int

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
        """Half way from the largest finite number to what would be the next."""
        step = 2.0 ** (frexp(self.largest)[1] - 1 - self.mantissa)
        return self.largest + step / 2

    @property
    def saturates(self) -> bool:
        """Whether the format has no infinity, so that what is too large becomes its largest number."""
        return self.overflow == self.nan - 1


FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {
        "bfloat16": FloatFormat(16, 7, -126, (2 - 2.0**-7) * 2.0**127, 0x7F80, 0x7FC0),
        "float16": FloatFormat(16, 10, -14, 65504.0, 0x7C00, 0x7E00),
        "float8_e4m3fn": FloatFormat(8, 3, -6, 448.0, 0x7E, 0x7F),
        "float8_e5m2": FloatFormat(8, 2, -14, 57344.0, 0x7C, 0x7F),
    }
)
"""The narrow formats, by dtype name."""

_NAN = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)


def narrow(values: Array, dtype: str) -> Array:
    """Return the bits of ``values`` rounded to the nearest number of ``dtype``, ties to even.

    Numbers beyond the range become infinity, or 448 in ``float8_e4m3fn``, which has no infinity. NaNs stay NaN and
    keep their sign.

    Args:
        values: flat, contiguous ``float32``.
        dtype: a name of :data:`FORMATS`.
    """
    target = FORMATS[dtype]
    raw = values.view(np.uint32)
    magnitude = raw & _MAGNITUDE
    drop = 23 - target.mantissa
    rounded = magnitude >> np.uint32(drop)
    rounded &= np.uint32(1)
    rounded += magnitude
    rounded += np.uint32((1 << (drop - 1)) - 1)
    rounded >>= np.uint32(drop)
    if target.exponent != -126:
        # The exponent is rebased; below the normal numbers, adding a power of two whose last place is the smallest
        # subnormal makes the hardware round to that place, and leaves the result in the lowest bits.
        rounded -= np.uint32((target.exponent + 126) << target.mantissa)
        smallest_normal = np.float32(2.0**target.exponent).view(np.uint32)
        magic = np.float32(2.0 ** (target.exponent - target.mantissa + 23))
        subnormal = (magnitude.view(np.float32) + magic).view(np.uint32)
        subnormal -= magic.view(np.uint32)
        np.copyto(rounded, subnormal, where=magnitude < smallest_normal)
    np.minimum(rounded, np.uint32(target.overflow), out=rounded)
    if magnitude.size and magnitude.max() > _NAN:
        np.copyto(rounded, np.uint32(target.nan), where=magnitude > _NAN)
    sign = raw >> np.uint32(31)
    sign <<= np.uint32(target.nbits - 1)
    rounded |= sign
    return rounded.astype(f"u{target.nbits // 8}").view(DTYPES[dtype].carrier)


def widen(bits: Array, dtype: str) -> Array:
    """Return the exact ``float32`` values of carrier bits; NaNs keep their sign and their payload.

    Args:
        bits: flat, contiguous carrier bits.
        dtype: a name of :data:`FORMATS`.
    """
    source = FORMATS[dtype]
    raw = bits.view(f"u{bits.itemsize}").astype(np.uint32)
    if source.exponent == -126:
        raw <<= np.uint32(16)
        return raw.view(np.float32)
    sign = raw >> np.uint32(source.nbits - 1)
    sign <<= np.uint32(31)
    raw &= np.uint32((1 << (source.nbits - 1)) - 1)
    special = raw >= np.uint32(source.nan if source.saturates else source.overflow)
    # Multiplying rebases the exponent, of subnormals too, without rounding.
    raw <<= np.uint32(23 - source.mantissa)
    values = raw.view(np.float32)
    scaled = values * np.float32(2.0 ** (126 + source.exponent))
    if special.any():
        np.copyto(scaled.view(np.uint32), raw | _NAN, where=special)
    scaled_raw = scaled.view(np.uint32)
    scaled_raw |= sign
    return scaled
