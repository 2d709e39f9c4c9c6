"""Codes of 1, 2, 4 or 8 bits, several to the byte, the first in the lowest bits."""

import numpy as np

from tensorstash.buffers import Array


def packed_nbytes(count: int, bits: int) -> int:
    """Return the bytes that ``count`` codes of ``bits`` bits take."""
    return -(-count * bits // 8)


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
