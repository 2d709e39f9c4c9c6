"""The fields of floats, from the lowest bits to the exponent, as arrays of their own."""

import numpy as np

from tensorstash import native
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


def take_field(floats: Array, k: int, field: Array) -> None:
    """Write field ``k`` of floats.

    Args:
        floats: flat unsigned integers of 2, 4 or 8 bytes.
        k: index into :func:`field_widths`.
        field: flat unsigned integers of the width of the field, to be overwritten.
    """
    widths, bits = field_widths(floats.itemsize), 8 * floats.itemsize
    is_sign = k == len(widths) - 2
    start = bits - 9 if k == len(widths) - 1 else 8 * sum(widths[:k])
    if native.functions is not None:
        native.functions.take_field(floats, floats.itemsize, -1 if is_sign else start, field)
        return
    if not is_sign:
        _cut(floats, start, field)
        return
    _cut(floats, bits - 16, field)
    field &= np.uint8(0x7F)
    sign = np.empty_like(field)
    _cut(floats, bits - 8, sign)
    sign &= np.uint8(0x80)
    field |= sign


def join_fields(fields: list[Array], floats: Array) -> None:
    """Write floats of which all fields are given; the inverse of :func:`take_field`.

    Args:
        fields: the lowest first.
        floats: flat unsigned integers of 2, 4 or 8 bytes, to be overwritten.
    """
    if native.functions is not None:
        native.functions.join_fields(floats, *reversed(fields))
        return
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


def _cut(floats: Array, start: int, field: Array) -> None:
    """Write the bits of each element from bit ``start`` on, as many as there is room for."""
    np.copyto(field, floats >> floats.dtype.type(start) if start else floats, casting="unsafe")
