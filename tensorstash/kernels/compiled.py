"""The functions compiled from ``native/``, where the package was installed with a C compiler."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, cast

import numpy as np

from tensorstash.host import native
from tensorstash.host.arrays import Array
from tensorstash.kernels.float_fields import field_start
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.table import Kernels
from tensorstash.spec import DTYPES

QUANTIZED = frozenset({"float32", "bfloat16", "float16"})
"""What is quantized in compiled code: what is computed in ``float32``."""

CONVERTED = frozenset({"bfloat16", "float16"})
"""What is converted from and to ``float32`` in compiled code."""


class Extension(Protocol):
    """What is compiled for arrays: as the functions of :class:`~tensorstash.kernels.table.Kernels`, but where noted.

    Each checks the sizes of its arrays, takes the width of an element from the array, and raises ValueError where they
    do not fit together. The interpreter lock is released meanwhile.
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

    def take_fields(self, floats: Array, /, *pairs: int | Array) -> None:
        """Fill at most four fields; for each its lowest bit, -1 for that of the sign, and its array."""
        ...

    def join_fields(self, floats: Array, /, *fields: Array) -> None:
        """Fill floats from all their fields, the highest first."""
        ...

    def integer_range(self, words: Array, is_signed: bool, /) -> tuple[int, int]: ...
    def subtract_base(self, words: Array, base: Array, stored: Array, /) -> None: ...
    def add_base(self, stored: Array, base: Array, words: Array, /) -> None: ...
    def pack_booleans(self, flags: Array, packed: Array, /) -> bool: ...
    def unpack_booleans(self, packed: Array, flags: Array, /) -> None: ...
    def pack_two_values(self, words: Array, pair: Array, packed: Array, /) -> bool: ...
    def unpack_two_values(self, packed: Array, pair: Array, words: Array, /) -> None: ...
    def mask_nonzero(self, words: Array, mask: Array, /) -> int: ...
    def gather_masked(self, words: Array, mask: Array, values: Array, /) -> bool: ...
    def scatter_masked(self, values: Array, mask: Array, words: Array, /) -> bool: ...


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

    def take_fields(floats: Array, fields: Mapping[int, Array]) -> None:
        pairs: list[int | Array] = []
        for k, field in fields.items():
            pairs += field_start(floats.itemsize, k), field
        compiled.take_fields(floats, *pairs)

    return replace(
        defined,
        quantize=quantize,
        dequantize=dequantize,
        narrow=narrow,
        widen=widen,
        convert=convert,
        take_fields=take_fields,
        join_fields=lambda fields, floats: compiled.join_fields(floats, *reversed(fields)),
        integer_range=lambda words: compiled.integer_range(words, words.dtype.kind == "i"),
        subtract_base=compiled.subtract_base,
        add_base=compiled.add_base,
        pack_booleans=compiled.pack_booleans,
        unpack_booleans=compiled.unpack_booleans,
        pack_two_values=compiled.pack_two_values,
        unpack_two_values=compiled.unpack_two_values,
        mask_nonzero=compiled.mask_nonzero,
        gather_masked=compiled.gather_masked,
        scatter_masked=compiled.scatter_masked,
    )
