"""A digest of a device's memory in one Triton kernel, which reads every word once."""

# mypy: ignore-errors
# Triton compiles the kernel; to a type checker of Python it means nothing.

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""Words that a program adds up."""


def digest(words: Tensor, multiplier: int) -> Tensor:
    """Return an ``int64`` that depends on every word and its place, on the current device, where the words are."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    count = words.numel()
    if count:
        _add[(-(-count // TILE),)](words, total, count, MULTIPLIER=multiplier, TILE=TILE, num_warps=8)
    return total


@triton.jit(do_not_specialize=["count"])
def _add(words, total, count, MULTIPLIER: tl.constexpr, TILE: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mixed = tl.load(words + places, mask=places < count, other=0).to(tl.int64)
    mixed = mixed * ((places * MULTIPLIER) | 1)  # words beyond the end are zeros, and add nothing
    mixed = (mixed ^ (mixed >> 29)) * MULTIPLIER
    tl.atomic_add(total, tl.sum(mixed ^ (mixed >> 32)))
