"""A checksum fast enough to run beside direct I/O."""

from zlib import crc32

import numpy as np

from tensorstash import native
from tensorstash.buffers import Array

CHECKSUM_BLOCK = 2**20
"""Bytes that are summed as one: few enough to stay in a core's cache."""

_SMALL = 32 * 2**10
_WIDTHS = (131, 521, 2053)
_SECTOR_WORDS = 64


def checksum(data: Array) -> int:
    """Return a 32-bit checksum of a one-dimensional ``uint8`` array, for what storage does to data.

    >>> one, other = np.zeros(3_000_000, np.uint8), np.zeros(3_000_000, np.uint8)
    >>> other[1_500_000] = 1
    >>> checksum(one) == checksum(one.copy()), checksum(one) == checksum(other)
    (True, False)
    """
    return crc32(np.array(block_checksums(data), np.uint32).data)


def block_checksums(data: Array, *, copy: Array | None = None) -> list[int]:
    """Return a 32-bit checksum of each block of :data:`CHECKSUM_BLOCK` bytes; the last may be shorter.

    The 8-byte words of a block are summed down the columns of a matrix, and the sums go through CRC-32. A changed
    word changes a sum. The width of the matrix is a prime larger than the number of 512-byte sectors in the block, so
    that sectors which are lost, stale or in another's place change other columns than those they left. Words that
    trade places within a column are not seen; no device does that. Compiled it runs as fast as memory is read, so
    that the device stays the bottleneck, where zlib's CRC-32 over all bytes runs at 3 GB/s; it releases the
    interpreter lock.

    Args:
        data: one-dimensional ``uint8``.
        copy: filled with ``data`` on the way, while the cache has it; as many bytes, elsewhere in memory.

    >>> block_checksums(np.zeros(CHECKSUM_BLOCK + 5, np.uint8))
    [3761646567, 3324180253]
    """
    blocks, rest = divmod(data.size, CHECKSUM_BLOCK)
    whole = blocks * CHECKSUM_BLOCK
    sums = _column_sums(data[:whole], CHECKSUM_BLOCK, None if copy is None else copy[:whole]) if whole else ()
    checksums = [crc32(row.data) for row in sums]
    if rest:
        start, whole, crc = whole, whole + rest // 8 * 8 * (rest >= _SMALL), 0
        if whole > start:
            crc = crc32(_column_sums(data[start:whole], rest, None if copy is None else copy[start:whole]).data)
        if copy is not None:
            copy[whole:] = data[whole:]
        checksums.append(crc32(data[whole:].data, crc))
    return checksums


def _column_sums(data: Array, block: int, copy: Array | None) -> Array:
    """Return a row of sums for each block, of ``block`` bytes each, and fill ``copy``, if there is one."""
    words = data.view(np.uint64)
    block //= 8
    width = next(width for width in _WIDTHS if width * _SECTOR_WORDS >= block)
    sums = np.zeros((-(-words.size // block), width), np.uint64)
    if native.functions is not None:
        native.functions.column_sums(words, sums, block, *(() if copy is None else (copy.view(np.uint64),)))
        return sums
    for row, start in zip(sums, range(0, words.size, block), strict=True):
        part = words[start : start + block]
        if copy is not None:
            copy[8 * start : 8 * start + part.nbytes] = data[8 * start : 8 * start + part.nbytes]
        whole = part.size // width * width
        np.add.reduce(part[:whole].reshape(-1, width), axis=0, out=row)
        row[: part.size - whole] += part[whole:]
    return sums
