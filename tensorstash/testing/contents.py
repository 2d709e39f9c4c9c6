"""Contents of tensors, as codecs see them: C-contiguous carrier bits."""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np

from tensorstash.host.arrays import Array, as_bytes
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides, opaque_bytes
from tensorstash.testing.layouts import REAL_FLOATS, pattern, special_values

SHAPES = ((), (0,), (4, 0, 3), (1,), (7,), (3, 1, 5), (2, 300), (129, 33))
"""Shapes that every codec has to take."""

LARGE = (70_001,)
"""More elements than codecs work on at a time."""

LARGE_DTYPES = ("bool", "uint8", "int16", "bfloat16", "float32", "int64", "float64")
"""Dtypes that stand for all others where tensors are large: of every size, integers and floats."""


def dense_spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Return the spec of a C-contiguous array on the host."""
    return TensorSpec(shape, contiguous_strides(shape), 0, dtype, "cpu")


def every_spec(shape: tuple[int, ...]) -> list[TensorSpec]:
    """Return the specs of arrays of ``shape`` in every dtype, and that of a run of bytes of unknown length."""
    return [*(dense_spec(shape, dtype) for dtype in DTYPES), opaque_bytes(dense_spec(shape, "uint8"))]


def contents(spec: TensorSpec) -> Mapping[str, Array]:
    """Return named contents of an array of ``spec``; a run of bytes of unknown length gets some length."""
    return {name: array.copy() for name, array in _contents(spec).items()}


@cache
def _contents(spec: TensorSpec) -> Mapping[str, Array]:
    shape = (777,) if spec.shape == (-1,) else spec.shape
    numel = max(int(np.prod(shape, dtype=int)), 1)
    bits, zero = pattern(spec.dtype, numel), np.zeros(1, spec.carrier)
    rng = np.random.default_rng(int(np.prod(shape, dtype=int)))
    sparse = np.where(np.arange(numel) % 5 == 0, bits, zero)
    found = {"zeros": zero, "equal": bits[:1], "any bits": bits, "sparse": sparse}
    if spec.dtype in REAL_FLOATS:
        normal, specials = rng.standard_normal(numel), special_values(spec.dtype)
        values = {"normal": normal, "tiny": normal * 1e-7, "far from zero": normal - 900}
        values |= {"rectified": np.maximum(normal, 0), "dropout": np.where(normal > 1, 1.25, 0)}
        found |= {name: float_bits(each, spec.dtype) for name, each in values.items()}
        mixed = np.where(rng.random(numel) < 0.01, rng.choice(specials, numel), found["normal"])
        found |= {"specials": specials, "normal and specials": mixed}
    elif spec.kind in ("int", "uint"):
        found["ramp"] = np.arange(numel).astype(spec.carrier)
        found["indices"] = rng.integers(0, 100, numel).astype(spec.carrier)
    elif spec.kind == "bool":
        found["rare"] = rng.random(numel) < 0.02
    if spec.kind != "bool":
        half = np.where(rng.random(bits.nbytes) < 0.5, 0, as_bytes(bits))
        found["half of the bytes zero"] = half.astype(np.uint8).view(spec.carrier)
    # NumPy's resize makes a list of all the copies of what is short.
    numbers = np.arange(math.prod(shape))
    whole = {name: each if each.size == numbers.size else each[numbers % each.size] for name, each in found.items()}
    return {name: each.reshape(shape) for name, each in whole.items()}


def float_bits(values: Array, dtype: str) -> Array:
    """Return ordinary values as carrier bits; ``bfloat16`` is cut off, not rounded."""
    if dtype == "bfloat16":
        # NumPy returns a number where an array without dimensions is shifted.
        return np.asarray(np.asarray(values, "float32").view("uint32") >> 16, "uint16")
    return np.asarray(values, DTYPES[dtype].carrier)


def float_values(bits: Array, dtype: str) -> Array:
    """Return the ``float64`` values of carrier bits of a real floating type that NumPy can represent."""
    wide = (bits.astype("uint32") << 16).view("float32") if dtype == "bfloat16" else bits
    with np.errstate(invalid="ignore"):
        return np.asarray(wide, "float64")
