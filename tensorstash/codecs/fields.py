"""The fields of floats, from the lowest bits to the exponent, as arrays of their own."""

import numpy as np

from tensorstash.buffers import Array
from tensorstash.spec import TensorSpec


def float_bits(array: Array, spec: TensorSpec) -> Array:
    """Return the bits of floats as a flat view of unsigned integers; complex numbers give two floats each."""
    return array.reshape(-1).view(f"u{spec.itemsize // 2 if spec.kind == 'complex' else spec.itemsize}")


def field_widths(itemsize: int) -> tuple[int, ...]:
    """Return the bytes of each field of floats of 2, 4 or 8 bytes, the lowest field first.

    The last two are one byte each: the sign and the seven bits below the last field, and the eight bits below the
    sign, which are the exponent, or the top of it (``float64``), or it and the top of the mantissa (``float16``).

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
    widths, bits = field_widths(floats.itemsize), 8 * floats.itemsize
    if k == len(widths) - 1:
        return _cut(floats, bits - 9, 1)
    if k < len(widths) - 2:
        return _cut(floats, 8 * sum(widths[:k]), widths[k])
    field = _cut(floats, bits - 16, 1)
    field &= np.uint8(0x7F)
    sign = _cut(floats, bits - 8, 1)
    sign &= np.uint8(0x80)
    field |= sign
    return field


def join_fields(fields: list[Array], floats: Array) -> None:
    """Write floats of which all fields are given; the inverse of :func:`take_field`.

    Args:
        fields: the lowest first.
        floats: flat unsigned integers of 2, 4 or 8 bytes, to be overwritten.
    """
    high = fields[-1].astype(np.uint16)
    high <<= np.uint16(7)
    second = fields[-2].astype(np.uint16)
    high |= second & np.uint16(0x7F)
    second &= np.uint16(0x80)
    second <<= np.uint16(8)
    high |= second
    floats[:] = high
    for field in reversed(fields[:-2]):
        floats <<= floats.dtype.type(8 * field.itemsize)
        floats |= field


def _cut(floats: Array, start: int, nbytes: int) -> Array:
    """Return some bits of each element, from bit ``start`` on, as an unsigned integer."""
    return (floats >> floats.dtype.type(start) if start else floats).astype(f"u{nbytes}")
