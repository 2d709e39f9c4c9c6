"""The functions compiled from ``native/``, where the package was installed with a C compiler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from tensorstash.host import native
from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import Groups
from tensorstash.spec import DTYPES

QUANTIZED = frozenset({"float32", "bfloat16", "float16"})
"""Dtypes that are quantized in compiled code: those that compute in ``float32``."""

CONVERTED = frozenset({"bfloat16", "float16"})
"""Dtypes that are converted from and to ``float32`` in compiled code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The functions on arrays that NumPy defines and compiled code may replace; each has the docstring of NumPy's.

    Arrays are contiguous and may start at any address. Only those that are said to be filled are written.

    Args:
        quantize: see :func:`~tensorstash.kernels.quantize.quantize`.
        dequantize: see :func:`~tensorstash.kernels.quantize.dequantize`.
        narrow: see :func:`~tensorstash.kernels.floats.narrow`.
        widen: see :func:`~tensorstash.kernels.floats.widen`.
        convert: see :func:`~tensorstash.kernels.floats.convert`.
    """

    quantize: Callable[[Array, Array, str, Groups, int, int | None], None]
    dequantize: Callable[[Array, Array, str, Groups, int], None]
    narrow: Callable[[Array, str], Array]
    widen: Callable[[Array, str], Array]
    convert: Callable[[Array, str, Array, str], None]


class Extension(Protocol):
    """The compiled functions on arrays, which release the interpreter lock.

    Raises:
        ValueError: sizes of arrays do not fit together.
    """

    def affine_encode(
        self, source: Array, body: Array, dtype: str, groups: tuple[int, int, int], bits: int, seed: int, /
    ) -> None:
        """Quantize: ``groups`` are rows, elements of a row and of a group; ``seed`` is -1 for rounding to nearest."""
        ...

    def affine_decode(self, body: Array, target: Array, dtype: str, groups: tuple[int, int, int], bits: int, /) -> None:
        """Dequantize, whatever the payload holds."""
        ...

    def narrow_floats(self, values: Array, bits: Array, dtype: str, /) -> None:
        """Fill ``bits`` with ``float32`` rounded to a format of :data:`CONVERTED`."""
        ...

    def widen_floats(self, bits: Array, values: Array, dtype: str, /) -> None:
        """Fill ``values``, ``float32``, with those of a format of :data:`CONVERTED`."""
        ...


def taking_the_place_of(defined: Kernels) -> Kernels:
    """Return a table with every function that was compiled in it, and those of ``defined`` elsewhere."""
    module = native.load()
    return defined if module is None else _over(defined, cast(Extension, module))


def _over(defined: Kernels, compiled: Extension) -> Kernels:
    def quantize(source: Array, body: Array, dtype: str, groups: Groups, bits: int, seed: int | None) -> None:
        if dtype in QUANTIZED and source.flags.aligned:
            rows = (groups.rows, groups.length, groups.size)
            compiled.affine_encode(source, body, dtype, rows, bits, -1 if seed is None else seed)
        else:
            defined.quantize(source, body, dtype, groups, bits, seed)

    def dequantize(body: Array, target: Array, dtype: str, groups: Groups, bits: int) -> None:
        if dtype in QUANTIZED and target.flags.aligned:
            compiled.affine_decode(body, target, dtype, (groups.rows, groups.length, groups.size), bits)
        else:
            defined.dequantize(body, target, dtype, groups, bits)

    def narrow(values: Array, dtype: str) -> Array:
        if dtype not in CONVERTED or not values.flags.aligned:
            return defined.narrow(values, dtype)
        bits = np.empty(values.size, np.uint16)
        compiled.narrow_floats(values, bits, dtype)
        return bits.view(DTYPES[dtype].carrier)

    def widen(bits: Array, dtype: str) -> Array:
        if dtype not in CONVERTED or not bits.flags.aligned:
            return defined.widen(bits, dtype)
        values = np.empty(bits.size, np.float32)
        compiled.widen_floats(bits, values, dtype)
        return values

    def convert(source: Array, dtype: str, target: Array, wanted: str) -> None:
        is_aligned = source.flags.aligned and target.flags.aligned
        if is_aligned and dtype == "float32" and wanted in CONVERTED:
            compiled.narrow_floats(source, target, wanted)
        elif is_aligned and dtype in CONVERTED and wanted == "float32":
            compiled.widen_floats(source, target, dtype)
        else:
            defined.convert(source, dtype, target, wanted)

    return Kernels(quantize=quantize, dequantize=dequantize, narrow=narrow, widen=widen, convert=convert)
