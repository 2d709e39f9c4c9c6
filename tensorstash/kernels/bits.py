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
    """Replace codes of 8 bits, contiguous, by the nearest of 4 or 2, of which 0 and the largest stand for the same.

    A code of 4 bits is worth 17 of 8 bits, one of 2 bits 85; both are odd, so that there are no ties.
    """
    if codes.size % 2:
        last = codes[-1:].repeat(2)
        coarsen(last, bits)
        codes[-1] = last[0]
        codes = codes[:-1]
    factor, half = map(np.uint16, COARSENING[bits])
    # In the lower and in the upper byte of each word.
    pairs = codes.view("<u2")
    upper = pairs >> np.uint16(8)
    upper *= factor
    upper += half
    upper &= np.uint16(0xFF00)
    pairs &= np.uint16(0x00FF)
    pairs *= factor
    pairs += half
    pairs >>= np.uint16(8)
    pairs |= upper


def pack_codes(codes: Array, bits: int, packed: Array, position: int) -> None:
    """Write codes into a packed stream, of which everything before ``position`` has been written.

    Args:
        codes: ``uint8``, each below ``2**bits``.
        bits: 2, 4 or 8.
        packed: the whole stream, bytes.
        position: index of the first code in the stream.
    """
    if bits == 8:
        packed[position : position + codes.size] = codes
        return
    per_byte = 8 // bits
    lead = position % per_byte
    if lead or codes.size % per_byte:
        codes = np.pad(codes, (lead, -(lead + codes.size) % per_byte))
    # One multiplication moves all codes of a word to its highest byte: code k, at bit 8k, goes to bit top + bits * k.
    top = 8 * (per_byte - 1)
    factor = sum(1 << (top - (8 - bits) * k) for k in range(per_byte))
    words = codes.view(f"<u{per_byte}") * np.dtype(f"u{per_byte}").type(factor)
    words >>= np.dtype(words.dtype).type(top)
    start = position // per_byte
    if lead:
        words[0] |= packed[start]
    np.copyto(packed[start : start + words.size], words, casting="unsafe")


def unpack_codes(packed: Array, bits: int, position: int, count: int) -> Array:
    """Return ``count`` codes of a packed stream, from ``position`` on, as ``uint8``; a view where a code is a byte.

    Args:
        packed: the whole stream, bytes.
        bits: 2, 4 or 8.
    """
    if bits == 8:
        return packed[position : position + count]
    per_byte = 8 // bits
    start, lead = divmod(position, per_byte)
    stop = -(-(position + count) // per_byte)
    words = packed[start:stop].astype(f"<u{per_byte}")
    word = words.dtype.type
    if bits == 2:
        words |= words << word(12)
        words &= word(0x000F000F)
        words |= words << word(6)
        words &= word(0x03030303)
    else:
        words |= words << word(4)
        words &= word(0x0F0F)
    return words.view(np.uint8)[lead : lead + count]
