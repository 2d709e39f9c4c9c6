"""Payloads mean the same on every machine and device.

Run this file to write the payloads of cases that are new; those that are there change with their codec's form alone.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tensorstash.codecs import Affine, AsType, Lossless, PackBits, Sparse, TwoValued, Zstd
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec
from tensorstash.testing.contents import dense_spec, float_bits

FILE = Path(__file__).with_name("golden.json")


def wave(size: int, dtype: str = "float32") -> Array:
    """Return smooth values that are exact in every format, so that no library's rounding is in them."""
    return float_bits(((np.arange(size) * 37) % 64 - 20) / 16, dtype)


CASES: dict[str, tuple[Codec, Array, str]] = {
    "pack bits": (PackBits(), np.arange(21) % 3 == 0, "bool"),
    "pack bits, other bytes": (PackBits(), np.arange(5, dtype=np.uint8).view(np.bool_), "bool"),
    "two valued": (TwoValued(), np.where(np.arange(19) % 5, np.float32(1.25), np.float32(-0.0)), "float32"),
    "sparse": (Sparse(), np.maximum(wave(40), 0), "float32"),
    "zstd": (Zstd(), np.arange(3000) % 7, "int64"),
    "zstd, plain": (Zstd(), np.arange(7, dtype=np.uint8), "uint8"),
    "lossless": (Lossless(), np.arange(500) % 99, "int64"),
    "affine 8": (Affine(bits=8, group_size=16), wave(40).reshape(2, 20), "float32"),
    "affine 4": (Affine(bits=4, group_size=7), wave(45, "bfloat16").reshape(3, 15), "bfloat16"),
    "affine 2": (Affine(bits=2, group_size=5), wave(26, "float16"), "float16"),
    "affine 8, float64": (Affine(bits=8), wave(30, "float64"), "float64"),
    "affine, not finite": (
        Affine(bits=4, group_size=8),
        np.where(np.arange(32) == 11, np.float32("nan"), wave(32)),
        "float32",
    ),
    "affine, stochastic": (Affine(bits=4, rounding="stochastic", seed=3), wave(200), "float32"),
    "affine, stochastic, float64": (
        Affine(bits=4, group_size=7, rounding="stochastic"),
        wave(60, "float64"),
        "float64",
    ),
    "astype bfloat16": (AsType(dtype="bfloat16"), wave(9) * np.float32(1.01), "float32"),
    "astype float16": (AsType(dtype="float16"), wave(9) * np.float32(1.01), "float32"),
    "astype float8_e4m3fn": (AsType(dtype="float8_e4m3fn"), wave(9), "float32"),
    "astype float8_e5m2": (AsType(dtype="float8_e5m2"), wave(9, "bfloat16"), "bfloat16"),
}

COMPRESSED = {"zstd", "lossless"}
"""Other versions of Zstandard may choose other bytes for the same content; these are only read."""


def payload_of(name: str) -> Array:
    codec, data, dtype = CASES[name]
    return codec.encode(data, dense_spec(data.shape, dtype))


def as_text(array: Array) -> str:
    return array.tobytes().hex()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", CASES)
def test_golden_payload_is_read_as_it_was_meant(name: str) -> None:
    codec, data, dtype = CASES[name]
    golden = json.loads(FILE.read_text(encoding="utf-8"))[name]
    spec = dense_spec(data.shape, dtype)
    described = codec.encoded_spec(spec)
    payload = np.frombuffer(bytes.fromhex(golden["payload"]), described.carrier).reshape(described.shape)
    assert as_text(codec.decode(payload, spec)) == (as_text(data) if codec.lossless else golden["array"])


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", [name for name in CASES if name not in COMPRESSED])
def test_golden_payload_is_written_again(name: str) -> None:
    assert as_text(payload_of(name)) == json.loads(FILE.read_text(encoding="utf-8"))[name]["payload"]


if __name__ == "__main__":
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name, (codec, data, dtype) in CASES.items():
        row = {"payload": as_text(payload_of(name))}
        if not codec.lossless:
            row["array"] = as_text(codec.decode(payload_of(name), dense_spec(data.shape, dtype)))
        known.setdefault(name, row)
    FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
