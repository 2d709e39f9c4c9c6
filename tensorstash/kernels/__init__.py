"""Arithmetic on arrays. NumPy defines what each function does, and compiled ones take its place here, once."""

from tensorstash.kernels import float_fields, floats, integers, masks, quantize
from tensorstash.kernels.compiled import taking_the_place_of
from tensorstash.kernels.table import Kernels

__all__ = ["DEFINED", "Kernels", "active"]

DEFINED = Kernels(
    quantize=quantize.quantize,
    dequantize=quantize.dequantize,
    narrow=floats.narrow,
    widen=floats.widen,
    convert=floats.convert,
    take_fields=float_fields.take_fields,
    join_fields=float_fields.join_fields,
    integer_range=integers.integer_range,
    subtract_base=integers.subtract_base,
    add_base=integers.add_base,
    pack_booleans=masks.pack_booleans,
    unpack_booleans=masks.unpack_booleans,
    pack_two_values=masks.pack_two_values,
    unpack_two_values=masks.unpack_two_values,
    mask_nonzero=masks.mask_nonzero,
    gather_masked=masks.gather_masked,
    scatter_masked=masks.scatter_masked,
)
"""Every function in NumPy: the meaning that all others are held to, bit by bit."""

active = taking_the_place_of(DEFINED)
"""What codecs call. A test puts :data:`DEFINED` here, and the whole package computes in NumPy."""
