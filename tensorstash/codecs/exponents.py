"""Floats with their exponents entropy coded, and their mantissas as they are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import zstandard

from tensorstash import native
from tensorstash.buffers import Array, aligned_empty, as_bytes
from tensorstash.codecs.entropy import (
    FAST_LEVELS,
    WORTHWHILE,
    Decompressor,
    choice,
    contiguous_sample,
    frame_of,
    total_size,
)
from tensorstash.codecs.fields import field_start, field_widths, float_bits, join_fields, take_fields
from tensorstash.codecs.literals import huffman_frames, literal_context
from tensorstash.codecs.payload import (
    BLOCK,
    HEADER_NBYTES,
    Header,
    check_count,
    check_data,
    damaged,
    empty_array,
    plain_payload,
    read_header,
    split_sections,
)
from tensorstash.codecs.settings import check_integer
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"EXP1"
_PLAIN, _FIELDS = 0, 1
_SAMPLE = 1 << 14
_SAMPLE_RUNS = 8
_WORTH_ITS_TIME = 1.12

_Way = Callable[[Array, int], list[Array]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponents:
    """Split floats into fields, and code those fields that get smaller, as Zstandard frames.

    Of the bits of trained activations only the exponent is far from random: fields are the (top eight bits of the)
    exponent, the byte of sign and leading mantissa bits, and what lies below. A field of which a sample does not
    compress is stored as it is, straight from the tensor to the payload. Complex numbers are pairs of floats.

    Up to level 3 the frames are compiled ones, which hold Huffman codes and nothing else; where nothing is compiled,
    they are the library's, which cannot do without a search for what repeats and is slower. These are other bytes, and
    both are read everywhere.

    Payload: header (mode 0 plain, 1 fields; count elements), then the bytes; or the stored length of every field as
    ``uint64``, the lowest field first, and the fields, each as it is where the length is its own, else as Zstandard
    frames of up to 65536 elements.

    Args:
        level: 1, or 2 and 3 for that search where a sample shows it to help, such as in floats that repeat; or the
            library's compression level, from 4 to 22.

    Raises:
        ConfigError: no such level.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((65536,), (1,), 0, "float32", "cpu")
    >>> codec, data = Exponents(), np.random.default_rng(0).standard_normal(65536).astype("float32")
    >>> bool(data.nbytes / codec.encode(data, spec).nbytes > 1.19)
    True
    """

    name: ClassVar[str] = "exponents"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    level: int = 1

    def __post_init__(self) -> None:
        check_integer("exponents.level", self.level, 1, 22)

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are floats, or complex numbers of floats, of 2, 4 or 8 bytes."""
        return spec.kind in ("float", "complex") and spec.itemsize > 1

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory.

        Raises:
            CodecError: ``data`` is not what ``spec`` says, or of no accepted dtype.
        """
        check_data(self, data, spec)
        floats = float_bits(data, spec)
        widths = field_widths(floats.itemsize)
        sample = contiguous_sample(floats, _SAMPLE, runs=_SAMPLE_RUNS)
        ways = _ways(self.level)
        frames = {k: self._frames(floats, sample, k, ways) for k in range(len(widths))}
        lengths = [
            total_size(stored) if stored else floats.size * width
            for stored, width in zip(frames.values(), widths, strict=True)
        ]
        if 8 * len(lengths) + sum(lengths) >= data.nbytes:
            return plain_payload(Header(MAGIC, _PLAIN, 0, spec.numel), data)
        payload = aligned_empty(HEADER_NBYTES + 8 * len(lengths) + sum(lengths))
        Header(MAGIC, _FIELDS, 0, spec.numel).write(payload)
        table, *sections = split_sections(self, payload[HEADER_NBYTES:], 8 * len(lengths), *lengths)
        table.view("<u8")[:] = lengths
        for k, stored in frames.items():
            if stored:
                np.concatenate(stored, out=sections[k])
        take_fields(floats, {k: sections[k].view(f"u{widths[k]}") for k, stored in frames.items() if not stored})
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory.

        Raises:
            CodecError: the payload is not one of this codec and this spec.
        """
        header, body = read_header(self, data, MAGIC)
        check_count(self, header.count, spec)
        if header.mode not in (_PLAIN, _FIELDS) or header.param:
            raise damaged(self, f"unknown mode {header.mode}, {header.param}")
        array = empty_array(self, header.count, spec)
        if header.mode == _PLAIN:
            split_sections(self, body, spec.nbytes)
            as_bytes(array)[:] = body
            return array
        floats = float_bits(array, spec)
        widths = field_widths(floats.itemsize)
        if body.size < 8 * len(widths):
            raise damaged(self, f"{body.size} bytes are too few for the lengths of {len(widths)} fields")
        lengths = body[: 8 * len(widths)].view("<u8").tolist()
        sections = split_sections(self, body[8 * len(widths) :], *lengths)
        sources = [
            _Field(self, section, width, section.size != width * floats.size)
            for section, width in zip(sections, widths, strict=True)
        ]
        for block in _blocks(floats):
            join_fields([source.take(block.size) for source in sources], block)
        for source in sources:
            source.finish()
        return array

    def _frames(self, floats: Array, sample: Array, k: int, ways: list[_Way]) -> list[Array]:
        """Return a field as frames by the way that does best on a sample, or nothing if none makes it smaller."""
        width = field_widths(floats.itemsize)[k]
        tried = [way(sample, k) for way in ways]
        sizes = [total_size(frames) for frames in tried]
        if min(sizes) * (_WORTH_ITS_TIME if self.level <= FAST_LEVELS else WORTHWHILE) > sample.size * width:
            return []
        best = choice(sizes)
        frames = tried[best] if sample is floats else ways[best](floats, k)
        return frames if total_size(frames) < floats.size * width else []


class _Field:
    """Reads one field of a payload, block by block."""

    def __init__(self, codec: Exponents, section: Array, width: int, compressed: bool) -> None:
        self._reader = Decompressor(codec, section) if compressed else None
        self._plain = section[:0] if compressed else section.view(f"u{width}")
        self._block = np.empty(BLOCK if compressed else 0, f"u{width}")
        self._position = 0

    def take(self, count: int) -> Array:
        """Return the next elements; they are overwritten by the next call."""
        if self._reader is not None:
            block = self._block[:count]
            self._reader.read_into(as_bytes(block))
            return block
        self._position += count
        return self._plain[self._position - count : self._position]

    def finish(self) -> None:
        """Check that everything was taken."""
        if self._reader is not None:
            self._reader.finish()


def _ways(level: int) -> list[_Way]:
    """Return the ways to make frames of a field, the fastest first."""
    if level > FAST_LEVELS:
        return [partial(_library_frames, zstandard.ZstdCompressor(level=level))]
    ways: list[_Way] = [] if native.functions is None else [partial(_huffman_frames, native.functions)]
    if level > 1 or not ways:
        ways.append(partial(_library_frames, literal_context()))
    return ways


def _huffman_frames(functions: native.Functions, floats: Array, k: int) -> list[Array]:
    itemsize = floats.itemsize
    return huffman_frames(functions, floats, field_start(itemsize, k), field_widths(itemsize)[k], BLOCK)


def _library_frames(context: zstandard.ZstdCompressor, floats: Array, k: int) -> list[Array]:
    room = np.empty(min(BLOCK, floats.size), f"u{field_widths(floats.itemsize)[k]}")
    frames = []
    for block in _blocks(floats):
        field = room[: block.size]
        take_fields(block, {k: field})
        frames.append(frame_of(context, as_bytes(field)))
    return frames


def _blocks(floats: Array) -> Iterator[Array]:
    return (floats[start : start + BLOCK] for start in range(0, floats.size, BLOCK))
