"""The fields of floats, from the lowest bits to the exponent, as arrays of their own."""

from collections.abc import Mapping

import numpy as np

from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import BLOCK
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


def field_start(itemsize: int, k: int) -> int:
    """Return the lowest bit of field ``k`` of floats, or -1 for that of the sign, which is in two places.

    >>> [field_start(4, k) for k in range(3)]
    [0, -1, 23]
    """
    widths = field_widths(itemsize)
    if k == len(widths) - 2:
        return -1
    return 8 * itemsize - 9 if k == len(widths) - 1 else 8 * sum(widths[:k])


def take_fields(floats: Array, fields: Mapping[int, Array]) -> None:
    """Write some fields of floats.

    Args:
        floats: flat unsigned integers of 2, 4 or 8 bytes.
        fields: by index into :func:`field_widths`: flat unsigned integers of the width of the field, to be overwritten.
    """
    for start in range(0, floats.size, BLOCK):
        block = floats[start : start + BLOCK]
        for k, field in fields.items():
            _take(block, field_start(floats.itemsize, k), field[start : start + block.size])


def join_fields(fields: list[Array], floats: Array) -> None:
    """Write floats of which all fields are given; the inverse of :func:`take_fields`.

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


def _take(floats: Array, start: int, field: Array) -> None:
    if start >= 0:
        _cut(floats, start, field)
        return
    bits = 8 * floats.itemsize
    _cut(floats, bits - 16, field)
    field &= np.uint8(0x7F)
    sign = np.empty_like(field)
    _cut(floats, bits - 8, sign)
    sign &= np.uint8(0x80)
    field |= sign


def _cut(floats: Array, start: int, field: Array) -> None:
    """Write the bits of each element from bit ``start`` on, as many as there is room for."""
    np.copyto(field, floats >> floats.dtype.type(start) if start else floats, casting="unsafe")
