"""Contents of tensors, as codecs see them: C-contiguous carrier bits."""

from collections.abc import Mapping

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
    """Return named contents of an array of ``spec``; a run of bytes of unknown length gets some length.

    >>> sorted(contents(dense_spec((2,), "bool")))
    ['any bits', 'equal', 'rare', 'sparse', 'zeros']
    """
    shape = (777,) if spec.shape == (-1,) else spec.shape
    numel = int(np.prod(shape, dtype=int))
    bits = pattern(spec.dtype, max(numel, 1))
    zero = np.zeros(1, spec.carrier)
    rng = np.random.default_rng(numel)
    found = {
        "zeros": np.resize(zero, shape),
        "equal": np.resize(bits[:1], shape),
        "any bits": np.resize(bits, shape),
        "sparse": np.resize(np.where(np.arange(bits.size) % 5 == 0, bits, zero), shape),
    }
    if spec.dtype in REAL_FLOATS:
        normal = rng.standard_normal(max(numel, 1))
        found["normal"] = np.resize(float_bits(normal, spec.dtype), shape)
        found["tiny"] = np.resize(float_bits(normal * 1e-7, spec.dtype), shape)
        found["far from zero"] = np.resize(float_bits(normal - 900, spec.dtype), shape)
        found["rectified"] = np.resize(float_bits(np.maximum(normal, 0), spec.dtype), shape)
        found["dropout"] = np.resize(float_bits(np.where(normal > 1, 1.25, 0), spec.dtype), shape)
        specials = special_values(spec.dtype)
        found["specials"] = np.resize(specials, shape)
        some = float_bits(normal, spec.dtype)
        mixed = np.where(rng.random(some.size) < 0.01, rng.choice(specials, some.size), some)
        found["normal and specials"] = np.resize(mixed, shape)
    elif spec.kind in ("int", "uint"):
        found["ramp"] = np.resize(np.arange(max(numel, 1)).astype(spec.carrier), shape)
        found["indices"] = np.resize(rng.integers(0, 100, max(numel, 1)).astype(spec.carrier), shape)
    elif spec.kind == "bool":
        found["rare"] = np.resize(rng.random(max(numel, 1)) < 0.02, shape)
    if spec.kind != "bool":
        half = np.where(rng.random(max(bits.nbytes, 1)) < 0.5, 0, np.resize(as_bytes(bits), max(bits.nbytes, 1)))
        found["half of the bytes zero"] = np.resize(half.astype(np.uint8).view(spec.carrier), shape)
    return {name: np.ascontiguousarray(array).reshape(shape) for name, array in found.items()}


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
