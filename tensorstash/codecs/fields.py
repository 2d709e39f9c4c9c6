"""The fields of floats, from the lowest bits to the exponent, as arrays of their own."""

import numpy as np

from tensorstash.buffers import Array
from tensorstash.spec import TensorSpec


def float_bits(array: Array, spec: TensorSpec) -> Array:
    """Return the bits of floats as a flat view of unsigned integers; complex numbers give two floats each."""
    return array.reshape(-1).view(f"u{spec.itemsize // 2 if spec.kind == 'complex' else spec.itemsize}")


def field_widths(itemsize: int) -> tuple[int, ...]:
    """Return the bytes of each field of floats of 2, 4 or 8 bytes, the lowest field first.

    The last two are one byte each: the leading mantissa bits, with the sign below them, and the top eight bits of
    the exponent (and, where the exponent is shorter, of the mantissa).

    >>> field_widths(2), field_widths(4), field_widths(8)
    ((1, 1), (2, 1, 1), (4, 2, 1, 1))
    """
    return {2: (1, 1), 4: (2, 1, 1), 8: (4, 2, 1, 1)}[itemsize]


def take_field(floats: Array, k: int) -> Array:
    """Return field ``k`` of floats, in fresh memory.

    Args:
        floats: flat unsigned integers of 2, 4 or 8 bytes.
        k: index into :func:`field_widths`.
    """
    widths = field_widths(floats.itemsize)
    low_bits = 8 * sum(widths[:k])
    if k < len(widths) - 2:
        return _shifted(floats, low_bits).astype(f"u{widths[k]}")
    high = _shifted(floats, 8 * floats.itemsize - 16).astype(np.uint16)
    rotated = high << np.uint16(1)
    if k == len(widths) - 1:
        rotated >>= np.uint16(8)
    else:
        rotated |= high >> np.uint16(15)
    return rotated.astype(np.uint8)


def join_fields(fields: list[Array], floats: Array) -> None:
    """Write floats of which all fields are given; the inverse of :func:`take_field`.

    Args:
        fields: the lowest first.
        floats: flat unsigned integers of 2, 4 or 8 bytes, to be overwritten.
    """
    rotated = fields[-1].astype(np.uint16)
    rotated <<= np.uint16(8)
    rotated |= fields[-2]
    high = rotated >> np.uint16(1)
    rotated <<= np.uint16(15)
    high |= rotated
    floats[:] = high
    for field in reversed(fields[:-2]):
        floats <<= floats.dtype.type(8 * field.itemsize)
        floats |= field


def _shifted(floats: Array, bits: int) -> Array:
    return floats >> floats.dtype.type(bits) if bits else floats
