"""The functions that may be compiled, as one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensorstash.host.arrays import Array
from tensorstash.kernels.groups import Groups


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
        take_fields: see :func:`~tensorstash.kernels.float_fields.take_fields`.
        join_fields: see :func:`~tensorstash.kernels.float_fields.join_fields`.
        integer_range: see :func:`~tensorstash.kernels.integers.integer_range`.
        subtract_base: see :func:`~tensorstash.kernels.integers.subtract_base`.
        add_base: see :func:`~tensorstash.kernels.integers.add_base`.
        pack_booleans: see :func:`~tensorstash.kernels.masks.pack_booleans`.
        unpack_booleans: see :func:`~tensorstash.kernels.masks.unpack_booleans`.
        pack_two_values: see :func:`~tensorstash.kernels.masks.pack_two_values`.
        unpack_two_values: see :func:`~tensorstash.kernels.masks.unpack_two_values`.
        mask_nonzero: see :func:`~tensorstash.kernels.masks.mask_nonzero`.
        gather_masked: see :func:`~tensorstash.kernels.masks.gather_masked`.
        scatter_masked: see :func:`~tensorstash.kernels.masks.scatter_masked`.
    """

    quantize: Callable[[Array, Array, str, Groups, int, int | None], None]
    dequantize: Callable[[Array, Array, str, Groups, int], None]
    narrow: Callable[[Array, str], Array]
    widen: Callable[[Array, str], Array]
    convert: Callable[[Array, str, Array, str], None]
    take_fields: Callable[[Array, Mapping[int, Array]], None]
    join_fields: Callable[[list[Array], Array], None]
    integer_range: Callable[[Array], tuple[int, int]]
    subtract_base: Callable[[Array, Array, Array], None]
    add_base: Callable[[Array, Array, Array], None]
    pack_booleans: Callable[[Array, Array], bool]
    unpack_booleans: Callable[[Array, Array], None]
    pack_two_values: Callable[[Array, Array, Array], bool]
    unpack_two_values: Callable[[Array, Array, Array], None]
    mask_nonzero: Callable[[Array, Array], int]
    gather_masked: Callable[[Array, Array, Array], bool]
    scatter_masked: Callable[[Array, Array, Array], bool]
