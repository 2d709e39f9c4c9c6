"""What the tests of codecs share: codecs, contents of tensors, and an independent reading of float formats."""

from collections.abc import Iterator

import numpy as np

from tensorstash.codecs import Affine, AsType, Lossless, PackBits, Sparse, TwoValued, Zstd
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec
from tensorstash.spec import DTYPES, TensorSpec, contiguous_strides

CODECS: tuple[Codec, ...] = (
    Zstd(shuffle=True),
    Zstd(),
    PackBits(),
    TwoValued(),
    Lossless(),
    Sparse(),
    Affine(),
    Affine(bits=2, group_size=5, rounding="stochastic", seed=7),
    AsType(dtype="bfloat16"),
    AsType(dtype="float8_e4m3fn"),
)

LARGE = (70_001,)
"""Elements in more than one block of each codec, which takes long."""

KINDS = ("bool", "uint8", "int16", "bfloat16", "float32", "int64", "float64")
"""Dtypes that stand for all others where tensors are large: of every size, integers and floats."""

FLOAT_FIELDS = {
    "float16": (5, 10),
    "bfloat16": (8, 7),
    "float32": (8, 23),
    "float64": (11, 52),
    "float8_e5m2": (5, 2),
}
"""Bits of the exponent and of the fraction."""


def spec_of(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec(shape, contiguous_strides(shape), 0, dtype, "cpu")


def from_bits(bits: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a C-contiguous carrier array whose memory begins like ``bits``, repeated as needed."""
    nbytes = int(np.prod(shape, dtype=int)) * DTYPES[dtype].itemsize
    raw = np.resize(np.ascontiguousarray(bits).view(np.uint8).reshape(-1), nbytes)
    return raw.view(DTYPES[dtype].carrier).reshape(shape)


def to_float64(array: Array, dtype: str) -> Array:
    """Return the values of float bits, worked out from the definition of the format rather than by conversion."""
    exponent_bits, fraction_bits = FLOAT_FIELDS[dtype]
    raw = array.view(f"u{array.itemsize}").astype(np.uint64)
    fraction = (raw & np.uint64((1 << fraction_bits) - 1)).astype(np.float64)
    exponent = ((raw >> np.uint64(fraction_bits)) & np.uint64((1 << exponent_bits) - 1)).astype(np.int64)
    negative = (raw >> np.uint64(exponent_bits + fraction_bits)) & np.uint64(1)
    bias = (1 << (exponent_bits - 1)) - 1
    with np.errstate(all="ignore"):
        normal = np.ldexp(1 + fraction * 2.0**-fraction_bits, exponent - bias)
        subnormal = np.ldexp(fraction * 2.0**-fraction_bits, 1 - bias)
    value = np.where(exponent == 0, subnormal, normal)
    special = exponent == (1 << exponent_bits) - 1
    value = np.where(special, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(negative == 1, -value, value)


def float_bits(values: Array, dtype: str) -> Array:
    """Return ordinary values as carrier bits; bfloat16 by cutting off, which is good enough to make contents."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(DTYPES[dtype].carrier)


def special_floats(dtype: str) -> Array:
    """Return carrier bits of zeros, infinities, NaNs of many kinds, subnormals and extremes, of both signs."""
    exponent_bits, fraction_bits = FLOAT_FIELDS[dtype]
    top = ((1 << exponent_bits) - 1) << fraction_bits
    ones = (1 << fraction_bits) - 1
    positive = [
        0,
        1,
        2,
        ones,
        ones + 1,
        top - 1,
        top,
        top + 1,
        top + (ones + 1) // 2,
        top + ones,
        top // 2,
        top // 2 + 1,
    ]
    sign = 1 << (exponent_bits + fraction_bits)
    return np.array(positive + [bits | sign for bits in positive], f"u{DTYPES[dtype].itemsize}")


def contents(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Yield named contents of a tensor: what models save, and what they should never save but may."""
    rng = np.random.default_rng((seed, len(shape), DTYPES[dtype].itemsize))
    numel, itemsize = int(np.prod(shape, dtype=int)), DTYPES[dtype].itemsize
    yield "zeros", from_bits(np.zeros(itemsize, np.uint8), shape, dtype)
    noise = rng.integers(0, 256, max(numel, 1) * itemsize, np.uint8)
    yield "any bits", from_bits(noise, shape, dtype)
    yield "half zeros", from_bits(np.where(rng.random(noise.size) < 0.5, 0, noise).astype(np.uint8), shape, dtype)
    yield "equal", from_bits(noise[:itemsize], shape, dtype)
    if dtype == "bool":
        yield "flags", from_bits(noise & 1, shape, dtype)
        yield "rare flags", from_bits((noise < 5).astype(np.uint8), shape, dtype)
    elif DTYPES[dtype].kind in ("int", "uint"):
        yield "indices", from_bits(rng.integers(0, 100, max(numel, 1)).astype(DTYPES[dtype].carrier), shape, dtype)
        yield "ramp", from_bits(np.arange(max(numel, 1)).astype(DTYPES[dtype].carrier), shape, dtype)
    elif dtype in FLOAT_FIELDS and itemsize > 1:
        normal = rng.standard_normal(max(numel, 1))
        yield "normal", from_bits(float_bits(normal, dtype), shape, dtype)
        yield "rectified", from_bits(float_bits(np.maximum(normal, 0), dtype), shape, dtype)
        yield "far from zero", from_bits(float_bits(normal - 900, dtype), shape, dtype)
        yield "tiny", from_bits(float_bits(normal * 1e-7, dtype), shape, dtype)
        yield "dropout", from_bits(float_bits(np.where(normal > 1, 1.25, 0), dtype), shape, dtype)
        specials = special_floats(dtype)
        yield "specials", from_bits(specials, shape, dtype)
        some = float_bits(normal, dtype).view(specials.dtype)
        some = np.where(rng.random(some.size) < 0.01, rng.choice(specials, some.size), some)
        yield "normal and specials", from_bits(some, shape, dtype)
