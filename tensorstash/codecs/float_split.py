"""Floats with their exponents entropy coded, and their mantissas as they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import zstandard

from tensorstash import kernels
from tensorstash.codecs.wire.entropy import (
    FAST_LEVELS,
    WORTHWHILE_RATIO,
    Decompressor,
    contiguous_sample,
    frame_of,
    huffman_context,
    total_size,
)
from tensorstash.codecs.wire.format import (
    CODED,
    HEADER_NBYTES,
    PLAIN,
    Header,
    check_data,
    check_integer,
    damaged,
    empty_array,
    open_payload,
    plain_payload,
    split_sections,
)
from tensorstash.host.arrays import Array, as_bytes, payload_empty
from tensorstash.kernels.float_fields import field_widths, float_bits
from tensorstash.kernels.groups import BLOCK
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"EXP1"
_SAMPLE_ELEMENTS = 1 << 14
_SAMPLE_RUNS = 8

_FAST_WORTHWHILE_RATIO = 1.12
"""How many times smaller a field has to get to be compressed at levels that save time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSplit:
    """Split floats into fields, and code those fields that get smaller, as Zstandard frames.

    Of the bits of trained activations only the exponent is far from random: fields are the (top eight bits of the)
    exponent, the byte of sign and leading mantissa bits, and what lies below. A field of which a sample does not
    compress is stored as it is, straight from the tensor to the payload. Complex numbers are pairs of floats.

    Payload: header (mode 0 plain, 1 fields; count elements), then the bytes; or the stored length of every field as
    ``uint64``, the lowest field first, and the fields, each as it is where the length is its own, else as Zstandard
    frames of up to 65536 elements.

    Args:
        level: from 1 to 3 parameters that search little for what repeats; from 4 to 22 the level of the library.

    Raises:
        ConfigError: no such level.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((65536,), (1,), 0, "float32", "cpu")
    >>> codec, data = FloatSplit(), np.random.default_rng(0).standard_normal(65536).astype("float32")
    >>> bool(data.nbytes / codec.encode(data, spec).nbytes > 1.19)
    True
    """

    name: ClassVar[str] = "float_split"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"

    level: int = 1

    def __post_init__(self) -> None:
        check_integer("float_split.level", self.level, 1, 22)

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are floats, or complex numbers of floats, of 2, 4 or 8 bytes."""
        return spec.kind in ("float", "complex") and spec.itemsize > 1

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory."""
        check_data(self, data, spec)
        floats = float_bits(data, spec)
        widths = field_widths(floats.itemsize)
        sample = contiguous_sample(floats, _SAMPLE_ELEMENTS, runs=_SAMPLE_RUNS)
        context = huffman_context() if self.level <= FAST_LEVELS else zstandard.ZstdCompressor(level=self.level)
        frames = {k: self._frames(context, floats, sample, k) for k in range(len(widths))}
        lengths = [
            total_size(stored) if stored else floats.size * width
            for stored, width in zip(frames.values(), widths, strict=True)
        ]
        if 8 * len(lengths) + sum(lengths) >= data.nbytes:
            return plain_payload(Header(MAGIC, PLAIN, 0, spec.numel), data)
        payload = payload_empty(HEADER_NBYTES + 8 * len(lengths) + sum(lengths))
        Header(MAGIC, CODED, 0, spec.numel).write(payload)
        table, *sections = split_sections(self, payload[HEADER_NBYTES:], 8 * len(lengths), *lengths)
        table.view("<u8")[:] = lengths
        for k, stored in frames.items():
            if stored:
                np.concatenate(stored, out=sections[k])
        plain = {k: sections[k].view(f"u{widths[k]}") for k, stored in frames.items() if not stored}
        kernels.active.take_fields(floats, plain)
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array in fresh memory."""
        header, body, plain = open_payload(self, data, spec, MAGIC)
        if plain is not None:
            return plain
        array = empty_array(self, header.count, spec)
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
            kernels.active.join_fields([source.take(block.size) for source in sources], block)
        for source in sources:
            source.finish()
        return array

    def _frames(self, context: zstandard.ZstdCompressor, floats: Array, sample: Array, k: int) -> list[Array]:
        """Return a field as frames, or nothing if they, or those of a sample, are not small enough."""
        width = field_widths(floats.itemsize)[k]
        frames = _field_frames(context, sample, k)
        ratio = _FAST_WORTHWHILE_RATIO if self.level <= FAST_LEVELS else WORTHWHILE_RATIO
        if total_size(frames) * ratio > sample.size * width:
            return []
        if sample is not floats:
            frames = _field_frames(context, floats, k)
        return frames if total_size(frames) < floats.size * width else []


class _Field:
    """Reads one field of a payload, block by block."""

    def __init__(self, codec: FloatSplit, section: Array, width: int, compressed: bool) -> None:
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


def _field_frames(context: zstandard.ZstdCompressor, floats: Array, k: int) -> list[Array]:
    room = np.empty(min(BLOCK, floats.size), f"u{field_widths(floats.itemsize)[k]}")
    frames = []
    for block in _blocks(floats):
        field = room[: block.size]
        kernels.active.take_fields(block, {k: field})
        frames.append(frame_of(context, as_bytes(field)))
    return frames


def _blocks(floats: Array) -> Iterator[Array]:
    return (floats[start : start + BLOCK] for start in range(0, floats.size, BLOCK))
