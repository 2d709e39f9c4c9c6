"""Arithmetic on arrays. NumPy defines each function, and compiled ones take its place here, once."""

from tensorstash.kernels import floats, quantize
from tensorstash.kernels.compiled import Kernels, taking_the_place_of

__all__ = ["DEFINED", "Kernels", "active"]

DEFINED = Kernels(
    quantize=quantize.quantize,
    dequantize=quantize.dequantize,
    narrow=floats.narrow,
    widen=floats.widen,
    convert=floats.convert,
)
"""Every function in NumPy: the meaning that all others are held to, bit by bit."""

active = taking_the_place_of(DEFINED)
"""The functions that codecs call. A test puts :data:`DEFINED` here, and the whole package computes in NumPy."""
