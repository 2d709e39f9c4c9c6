"""Arithmetic on arrays. NumPy defines each function, and compiled ones take its place here, once.

Arrays are contiguous and may start at any address. Only those that are said to be filled are written. The compiled
functions come from ``native/`` and release the interpreter lock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorstash.host import native
from tensorstash.host.arrays import Array
from tensorstash.kernels import floats
from tensorstash.kernels import quantize as affine
from tensorstash.kernels.groups import Groups

__all__ = ["DEFINED", "Kernels", "active"]

_QUANTIZED = frozenset({"float32", "bfloat16", "float16"})
"""Dtypes that are quantized in compiled code: those that compute in ``float32``."""

_CONVERTED = frozenset({"bfloat16", "float16"})
"""Dtypes that are converted from and to ``float32`` in compiled code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The functions on arrays that NumPy defines and compiled code may replace.

    Args:
        quantize: see :func:`~tensorstash.kernels.quantize.quantize`.
        dequantize: see :func:`~tensorstash.kernels.quantize.dequantize`.
        convert: see :func:`~tensorstash.kernels.floats.convert`.
    """

    quantize: Callable[[Array, Array, str, Groups, int, int | None], None]
    dequantize: Callable[[Array, Array, str, Groups, int], None]
    convert: Callable[[Array, str, Array, str], None]


DEFINED = Kernels(quantize=affine.quantize, dequantize=affine.dequantize, convert=floats.convert)
"""Every function in NumPy: the meaning that all others are held to, bit by bit."""


def _over(compiled: Any) -> Kernels:
    """Return the functions of the compiled module, and those of NumPy for dtypes that it does not know."""

    def quantize(source: Array, body: Array, dtype: str, groups: Groups, bits: int, seed: int | None) -> None:
        if dtype in _QUANTIZED and source.flags.aligned:
            rows = (groups.rows, groups.length, groups.size)
            compiled.affine_encode(source, body, dtype, rows, bits, -1 if seed is None else seed)
        else:
            DEFINED.quantize(source, body, dtype, groups, bits, seed)

    def dequantize(body: Array, target: Array, dtype: str, groups: Groups, bits: int) -> None:
        if dtype in _QUANTIZED and target.flags.aligned:
            compiled.affine_decode(body, target, dtype, (groups.rows, groups.length, groups.size), bits)
        else:
            DEFINED.dequantize(body, target, dtype, groups, bits)

    def convert(source: Array, dtype: str, target: Array, wanted: str) -> None:
        is_aligned = source.flags.aligned and target.flags.aligned
        if is_aligned and dtype == "float32" and wanted in _CONVERTED:
            compiled.narrow_floats(source, target, wanted)
        elif is_aligned and dtype in _CONVERTED and wanted == "float32":
            compiled.widen_floats(source, target, dtype)
        else:
            DEFINED.convert(source, dtype, target, wanted)

    return Kernels(quantize=quantize, dequantize=dequantize, convert=convert)


active = DEFINED if native.functions is None else _over(native.functions)
"""The functions that codecs call. A test puts :data:`DEFINED` here, and the whole package computes in NumPy."""
