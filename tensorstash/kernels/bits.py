"""Codes of 1, 2, 4 or 8 bits, several to the byte, the first in the lowest bits."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tensorstash.host.arrays import Array


def packed_nbytes(count: int, bits: int) -> int:
    """Return the bytes that ``count`` codes of ``bits`` bits take."""
    return -(-count * bits // 8)


COARSENING: Mapping[int, tuple[int, int]] = MappingProxyType({4: (15, 135), 2: (3, 129)})
"""By bits, a factor and a summand that make 256 times the nearest code, and a rest, of one of 8 bits."""


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
