"""Payloads mean the same on every machine and device, compiled or not: their checksums."""

from zlib import crc32

import numpy as np
import pytest

from tensorstash.codecs import Affine, AsType, PackBits, Sparse, TwoValued
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec
from tensorstash.testing.contents import dense_spec, float_bits


def wave(size: int, dtype: str = "float32") -> Array:
    """Return smooth values that are exact in every format, so that no library's rounding is in them."""
    return float_bits(((np.arange(size) * 37) % 64 - 20) / 16, dtype)


ODD = np.where(np.arange(32) == 11, np.float32("nan"), wave(32))

CASES: tuple[tuple[Codec, Array, str, int], ...] = (
    (PackBits(), np.arange(21) % 3 == 0, "bool", 0xC41043DC),
    (TwoValued(), np.where(np.arange(19) % 5, np.float32(1.25), np.float32(-0.0)), "float32", 0x356B6EF3),
    (Sparse(), np.maximum(wave(40), 0), "float32", 0x267F5409),
    (Affine(bits=8, group_size=16), wave(40).reshape(2, 20), "float32", 0x81152B04),
    (Affine(bits=4, group_size=7), wave(45, "bfloat16").reshape(3, 15), "bfloat16", 0x81EB6538),
    (Affine(bits=2, group_size=5), wave(26, "float16"), "float16", 0xCB9B0065),
    (Affine(bits=8), wave(30, "float64"), "float64", 0x5D8BD960),
    (Affine(bits=4, group_size=8), ODD, "float32", 0x2BFECCF9),
    (Affine(bits=4, rounding="stochastic", seed=3), wave(200), "float32", 0x421660A0),
    (Affine(bits=4, group_size=7, rounding="stochastic"), wave(60, "float64"), "float64", 0x156BA54D),
    (AsType(dtype="bfloat16"), wave(9) * np.float32(1.01), "float32", 0x0186991A),
    (AsType(dtype="float16"), wave(9) * np.float32(1.01), "float32", 0x162F193C),
    (AsType(dtype="float8_e4m3fn"), wave(9), "float32", 0x0AA6DD95),
    (AsType(dtype="float8_e5m2"), wave(9, "bfloat16"), "bfloat16", 0xD58B86BF),
)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(("codec", "data", "dtype", "expected"), CASES, ids=[f"{one[0]} {one[2]}" for one in CASES])
def test_a_payload_is_what_it_was(codec: Codec, data: Array, dtype: str, expected: int) -> None:
    assert crc32(codec.encode(data, dense_spec(data.shape, dtype)).tobytes()) == expected
