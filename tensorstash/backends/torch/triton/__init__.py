"""Codecs as Triton kernels: each reads its input once and writes its output once.

They agree with the NumPy codecs bit for bit. For that, divisions are rounded to nearest, products and sums are not
fused, minima and maxima are taken of integers in the order of the floats, and narrow formats are rounded by integer
arithmetic.
"""

from tensorstash.backends.torch.triton.affine import dequantize, fits, quantize
from tensorstash.backends.torch.triton.conversion import convert
from tensorstash.backends.torch.triton.flags import pack_flags, unpack_flags
from tensorstash.backends.torch.triton.language import AVAILABLE, runs_on

__all__ = [
    "AVAILABLE",
    "convert",
    "dequantize",
    "fits",
    "pack_flags",
    "quantize",
    "runs_on",
    "unpack_flags",
]
