"""What tensors hold, as codecs see it: C-contiguous carrier bits."""

from collections.abc import Mapping

import numpy as np

from tensorstash.buffers import Array
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides, opaque_bytes
from tensorstash.testing.layouts import pattern, special_values

SHAPES = ((), (0,), (4, 0, 3), (1,), (7,), (3, 1, 5), (2, 300), (33, 65))
"""Shapes that every codec has to take."""


def dense_spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Return the spec of a C-contiguous array on the host."""
    return TensorSpec(shape, contiguous_strides(shape), 0, dtype, "cpu")


def every_spec(shape: tuple[int, ...]) -> list[TensorSpec]:
    """Return the specs of arrays of ``shape`` in every dtype, and that of a run of bytes of unknown length."""
    return [*(dense_spec(shape, dtype) for dtype in DTYPES), opaque_bytes(dense_spec(shape, "uint8"))]


def contents(spec: TensorSpec) -> Mapping[str, Array]:
    """Return named contents of an array of ``spec``; a run of bytes of unknown length gets some length.

    >>> sorted(contents(dense_spec((2,), "bool")))
    ['any bits', 'equal', 'sparse', 'zeros']
    """
    shape = (777,) if spec.shape == (-1,) else spec.shape
    numel = int(np.prod(shape, dtype=int))
    bits = pattern(spec.dtype, max(numel, 1))
    zero = np.zeros(1, spec.carrier)
    found = {
        "zeros": np.resize(zero, shape),
        "equal": np.resize(bits[:1], shape),
        "any bits": np.resize(bits, shape),
        "sparse": np.resize(np.where(np.arange(bits.size) % 5 == 0, bits, zero), shape),
    }
    if spec.dtype in ("float16", "bfloat16", "float32", "float64"):
        normal = np.random.default_rng(numel).standard_normal(max(numel, 1))
        found["normal"] = np.resize(float_bits(normal, spec.dtype), shape)
        found["tiny"] = np.resize(float_bits(normal * 1e-7, spec.dtype), shape)
        found["far from zero"] = np.resize(float_bits(normal - 900, spec.dtype), shape)
        found["specials"] = np.resize(special_values(spec.dtype), shape)
    elif spec.kind in ("int", "uint"):
        found["ramp"] = np.resize(np.arange(max(numel, 1)).astype(spec.carrier), shape)
    return {name: np.ascontiguousarray(array).reshape(shape) for name, array in found.items()}


def float_bits(values: Array, dtype: str) -> Array:
    """Return ordinary values as carrier bits; ``bfloat16`` is cut off, not rounded."""
    if dtype == "bfloat16":
        return (np.asarray(values, "float32").view("uint32") >> 16).astype("uint16")
    return np.asarray(values, DTYPES[dtype].carrier)


def float_values(bits: Array, dtype: str) -> Array:
    """Return the ``float64`` values of carrier bits of a real floating type that NumPy can represent."""
    wide = (bits.astype("uint32") << 16).view("float32") if dtype == "bfloat16" else bits
    with np.errstate(invalid="ignore"):
        return np.asarray(wide, "float64")
