"""Zstandard frames of bytes that are unevenly distributed, such as exponents, but hardly ever repeat in order."""

import numpy as np
import zstandard

from tensorstash import native
from tensorstash.buffers import Array

_ROOM = 1 << 20
_SLACK = 64


def literal_context() -> zstandard.ZstdCompressor:
    """Return a context of the library that wastes little time on the search for what repeats.

    It cannot do without and still code by Huffman. Few matches are as long as 7, and looking for them in a small table
    is cheap; from level 1 on the literals that remain, nearly all, are coded. Twice as fast as level 1.
    """
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=17, hash_log=6, min_match=7)
    return zstandard.ZstdCompressor(compression_params=parameters)


def huffman_frames(functions: native.Functions, words: Array, start: int, width: int, count: int) -> list[Array]:
    """Return frames without any search, in memory of about their size.

    Args:
        functions: what is compiled.
        words: flat: bytes, or floats as unsigned integers.
        start: of the field of floats to be coded, as :func:`~tensorstash.codecs.fields.field_start` says; 0 for bytes.
        width: of that field, in bytes; 1 for bytes.
        count: words of a frame, at most 2**20.
    """
    frames: list[Array] = []
    frame_nbytes = min(count, words.size) * width
    while words.size:
        most = words.size * width + (words.size // count + 1) * (_SLACK + frame_nbytes // _SLACK)
        room = np.empty(min(most, _ROOM + 2 * frame_nbytes), np.uint8)
        done, stored = functions.huffman_frames(words, words.itemsize, start, width, count, room)
        frames.append(room[:stored])
        words = words[done:]
    return frames
