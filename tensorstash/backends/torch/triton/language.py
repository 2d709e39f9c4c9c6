"""What the Triton kernels share: how they are compiled, floats of every format as bits, and codes in bytes.

The modules can be imported without Triton, which has no build for some platforms; see :data:`AVAILABLE`.
"""

# mypy: ignore-errors
# Triton compiles most of these functions; to a type checker of Python they mean nothing.

# Triton has to see annotations as text, so that they can be read where it is not installed.
from __future__ import annotations

from functools import cache
from importlib.util import find_spec

AVAILABLE = find_spec("triton") is not None
"""Whether Triton is installed."""

if AVAILABLE:
    import triton
    import triton.language as tl
    from triton import cdiv, next_power_of_2
    from triton.language import constexpr
else:
    tl = cdiv = next_power_of_2 = None
    constexpr = float


@cache
def runs_on(kind):
    """Whether Triton has a driver for devices of a type, by PyTorch's name of it."""
    if not AVAILABLE:
        return False
    try:
        return triton.runtime.driver.active.get_active_torch_device().type == kind
    except RuntimeError:  # which is how it says that there is no driver
        return False


TILE = 4096
"""Elements that a program works on."""

OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
"""Of every launch: a product and a sum are rounded one after the other, as NumPy does it."""

MAX = constexpr(0x7FFFFFFF)
MIN = constexpr(-0x80000000)
INFINITY = constexpr(0x7F800000)


def jit(function):
    """Return the kernel of a function, compiled once whatever the numbers of a payload are."""
    return triton.jit(function, do_not_specialize=["seed"]) if AVAILABLE else function


@jit
def pack(codes, BITS: tl.constexpr):
    """Return bytes of codes side by side along the last dimension, the first in the lowest bits."""
    if BITS == 1:
        codes = _paired(codes, 1)
    if BITS <= 2:
        codes = _paired(codes, 2)
    if BITS <= 4:
        codes = _paired(codes, 4)
    return codes


@jit
def _paired(codes, SHIFT: tl.constexpr):
    lower, upper = tl.split(tl.reshape(codes, [codes.shape[0], codes.shape[1] // 2, 2]))
    return lower | (upper << SHIFT)


@jit
def unpack(codes, BITS: tl.constexpr):
    """Return the codes of bytes: the inverse of :func:`_pack`."""
    if BITS <= 4:
        codes = _parted(codes, 4)
    if BITS <= 2:
        codes = _parted(codes, 2)
    if BITS == 1:
        codes = _parted(codes, 1)
    return codes


@jit
def _parted(codes, SHIFT: tl.constexpr):
    both = tl.join(codes & ((1 << SHIFT) - 1), codes >> SHIFT)
    return tl.reshape(both, [codes.shape[0], codes.shape[1] * 2])
