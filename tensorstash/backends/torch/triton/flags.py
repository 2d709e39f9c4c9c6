"""Booleans at one bit per element, in Triton."""

# mypy: ignore-errors
# Triton compiles most of these functions; to a type checker of Python they mean nothing.

# Triton has to see annotations as text, so that they can be read where it is not installed.
from __future__ import annotations

import torch
from torch import Tensor

from tensorstash.backends.torch.triton.language import OPTIONS, TILE, cdiv, jit, pack, tl, unpack


def pack_flags(flags: Tensor, payload: Tensor):
    """Write the payload of :class:`~tensorstash.codecs.pack_bits.PackBits`; bytes that are not 0 count as 1."""
    count = flags.numel()
    _pack_flags[(cdiv(count, 2 * TILE),)](flags.reshape(-1).view(torch.uint8), payload, count, 2 * TILE, **OPTIONS)


def unpack_flags(payload: Tensor, flags: Tensor):
    """Write the booleans that a payload stands for."""
    count = flags.numel()
    _unpack_flags[(cdiv(count, 2 * TILE),)](payload, flags.reshape(-1).view(torch.uint8), count, 2 * TILE, **OPTIONS)


@jit
def _places(count, TILE: tl.constexpr):
    """Return the elements of this program, the bytes of their bits, and which of both exist."""
    first = tl.program_id(0).to(tl.int64) * TILE
    place = first + tl.arange(0, TILE)[None, :]
    at = first // 8 + tl.arange(0, TILE // 8)[None, :]
    return place, place < count, at, at < (count + 7) // 8


@jit
def _pack_flags(flags, payload, count, TILE: tl.constexpr):
    place, mask, at, inside = _places(count, TILE)
    raised = (tl.load(flags + place, mask=mask, other=0) != 0).to(tl.int32)
    tl.store(payload + at, pack(raised, 1).to(tl.uint8), mask=inside)


@jit
def _unpack_flags(payload, flags, count, TILE: tl.constexpr):
    place, mask, at, inside = _places(count, TILE)
    marks = tl.load(payload + at, mask=inside, other=0).to(tl.int32)
    tl.store(flags + place, unpack(marks, 1).to(tl.uint8), mask=mask)
