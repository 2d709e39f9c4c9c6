"""What lossless codecs find in tensors, how small that makes them, and how much memory it takes meanwhile."""

import tracemalloc
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from codec_cases import CODECS

from tensorstash.codecs import Lossless, PackBits, Sparse, TwoValued, Zstd
from tensorstash.codecs.lossless import _CODECS
from tensorstash.codecs.zstd import contiguous_sample
from tensorstash.errors import CodecError
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.protocols import Codec
from tensorstash.testing.contents import dense_spec, float_bits


def normal(size: int, dtype: str = "float32") -> Array:
    return float_bits(np.random.default_rng(0).standard_normal(size), dtype)


def test_zstd_stores_rows_that_do_not_compress_as_they_are() -> None:
    data = normal(1 << 18)
    spec = dense_spec(data.shape, "float32")
    planes = as_bytes(data).reshape(-1, 4).T
    payload = Zstd(shuffle=True).encode(data, spec)
    lengths = payload[8:40].view("<u8").tolist()
    assert lengths[:2] == [1 << 18] * 2
    assert payload[40:][: 2 << 18].tobytes() == planes[:2].tobytes()
    assert lengths[3] < (1 << 18) * 0.36
    assert Zstd().encode(data, spec).nbytes > payload.nbytes


@pytest.mark.parametrize("level", [-7, 1, 3, 9, 19])
@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 17])
def test_zstd_adds_16_bytes_to_what_does_not_compress_and_no_more(level: int, size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    assert Zstd(level=level).encode(data, dense_spec(data.shape, "uint8")).nbytes == size + 16


@pytest.mark.parametrize(("byte", "place"), [(2, 0), (0x80, 600_000), (0xFF, 999_999)])
def test_pack_bits_keeps_booleans_that_are_neither_0_nor_1(byte: int, place: int) -> None:
    flags = np.random.default_rng(0).integers(0, 2, 1_000_000, np.uint8)
    codec, spec = PackBits(), dense_spec(flags.shape, "bool")
    assert codec.encode(flags.view(np.bool_), spec).nbytes == 125_000
    flags[place] = byte
    payload = codec.encode(flags.view(np.bool_), spec)
    assert np.shares_memory(payload, flags)
    for each in (codec, Lossless()):
        assert each.decode(each.encode(flags.view(np.bool_), spec), spec).tobytes() == flags.tobytes()


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0x80000000), (0x7F800001, 0x7FC00000), (0, 0x3FA00000), (5, 5), (0xFFFFFFFF, 0)]
)
@pytest.mark.parametrize("third", [None, 0, 65_535, 65_536, 199_999])
def test_two_valued_compares_every_element_as_bits(first: int, second: int, third: int | None) -> None:
    flags = np.random.default_rng(0).random(200_000) < 0.3
    bits = np.where(flags, np.uint32(second), np.uint32(first))
    if third is not None:
        bits[third] = 0x00000001
    codec, spec = TwoValued(), dense_spec(bits.shape, "float32")
    payload = codec.encode(bits.view(np.float32), spec)
    assert codec.decode(payload, spec).tobytes() == bits.tobytes()
    packed = len(np.unique(bits)) <= 2
    assert payload.nbytes == (8 + 25_000 if packed else 800_000)
    assert np.shares_memory(payload, bits) != packed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_sparse_takes_a_bit_for_a_zero(dtype: str) -> None:
    data = np.where(np.random.default_rng(0).random(100_000) < 0.9, 0, normal(100_000) * 100 + 1000).astype("f4")
    data = data.astype("i8") if dtype == "int64" else float_bits(data, dtype)
    payload = Sparse().encode(data, dense_spec(data.shape, dtype))
    assert payload.nbytes <= 16 + np.count_nonzero(data) * data.itemsize + 12_500


@cache
def kinds() -> dict[str, tuple[Array, str, str]]:
    rng = np.random.default_rng(0)
    size = 1 << 18
    mask = rng.random(size) < 0.1
    noise = rng.integers(0, 256, 4 * size, np.uint8)
    return {
        "boolean mask": (mask, "bool", "PackBits"),
        "dropout scales": (np.where(mask, np.float32(0), np.float32(1 / 0.9)), "float32", "TwoValued"),
        "integer mask": (mask.astype(np.int64), "int64", "TwoValued"),
        "token numbers": (rng.integers(0, 50_000, size), "int64", "Zstd(level=1, shuffle=True)"),
        "rectified": (np.maximum(normal(size), 0), "float32", "Sparse"),
        "activations": (normal(size), "float32", "Zstd(level=1, shuffle=True)"),
        "repeated activations": (np.tile(normal(128), size // 128), "float32", "Zstd(level=1, shuffle=True)"),
        "bfloat16 activations": (normal(size, "bfloat16"), "bfloat16", "Zstd(level=1, shuffle=True)"),
        "float16 activations": (normal(size, "float16"), "float16", "Zstd(level=1, shuffle=True)"),
        "text": (np.frombuffer(b"saved tensors " * 20_000, np.uint8), "uint8", "Zstd(level=1, shuffle=False)"),
        "noise": (noise.view(np.float32), "float32", ""),
        "random integers": (noise.view(np.int32), "int32", ""),
        "random bytes": (noise, "uint8", ""),
    }


@pytest.mark.parametrize("kind", kinds())
def test_lossless_chooses_by_content(kind: str) -> None:
    data, dtype, codec = kinds()[kind]
    spec = dense_spec(data.shape, dtype)
    payload = Lossless(min_ratio=1.1).encode(borrowed(data), spec)
    assert Lossless().decode(payload, spec).tobytes() == data.tobytes()
    if codec:
        assert repr(_CODECS[payload[-1]]).startswith(codec)
        assert payload.nbytes * 1.1 <= data.nbytes
    else:
        assert np.shares_memory(payload, data)
        assert not payload.flags.writeable
        assert payload.nbytes == data.nbytes


def traced(call: Callable[[], Array]) -> tuple[Array, int]:
    """Return what a call returns, and the most memory that it had allocated at one time, in bytes."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@cache
def large_tensors() -> list[tuple[Array, str]]:
    """Return tensors beside which a block is small."""
    rng = np.random.default_rng(0)
    size = 1 << 22
    mask = rng.random(size) < 0.5
    floats = normal(size)
    return [
        (mask, "bool"),
        (np.where(mask, floats, np.float32(0)), "float32"),
        (floats, "float32"),
        (rng.integers(0, 200, size), "int64"),
        (float_bits(floats, "bfloat16"), "bfloat16"),
    ]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_no_temporary_is_larger_than_the_payload_and_a_block(codec: Codec) -> None:
    spare = 16 * 8 << 16
    for data, dtype in large_tensors():
        spec = dense_spec(data.shape, dtype)
        if not codec.accepts(spec):
            continue
        payload, most = traced(lambda codec=codec, data=data, spec=spec: codec.encode(borrowed(data), spec))
        assert most <= 2 * payload.nbytes + spare, dtype
        _, most = traced(lambda codec=codec, payload=payload, spec=spec: codec.decode(borrowed(payload), spec))
        assert most <= data.nbytes + payload.nbytes + spare, dtype


def test_lossless_refuses_a_tag_of_no_codec_or_one_of_another_dtype() -> None:
    spec = dense_spec((4096,), "float32")
    payload = Lossless().encode(np.zeros(4096, np.float32), spec)
    for tag in (_CODECS.index(PackBits()), len(_CODECS), 255):
        payload[-1] = tag
        with pytest.raises(CodecError, match=f"no codec of float32 has the tag {tag}"):
            Lossless().decode(payload, spec)


def test_zstd_looks_at_a_sample_and_leaves_the_row_alone_if_that_does_not_compress() -> None:
    row = np.zeros(1 << 18, np.uint8)
    places = contiguous_sample(np.arange(row.size), row.size // 16)
    row[places] = np.random.default_rng(0).integers(0, 256, places.size)
    assert Zstd().encode(row, dense_spec(row.shape, "uint8")).nbytes == row.size + 16


def test_higher_levels_are_smaller() -> None:
    words = np.random.default_rng(0).integers(0, 50, 1 << 14)
    text = np.concatenate([np.frombuffer(b"saved tensor number %d " % word, np.uint8) for word in words.tolist()])
    spec = dense_spec(text.shape, "uint8")
    sizes = [Zstd(level=level).encode(text, spec).nbytes for level in (-5, 1, 19)]
    assert sizes[2] < sizes[1] < sizes[0] / 1.5


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64"])
def test_two_values_are_packed_only_where_that_is_smaller_so_that_the_length_tells_what_it_is(dtype: str) -> None:
    for size in range(40):
        data = (np.arange(size) % 2).astype(dtype)
        payload = TwoValued().encode(data, dense_spec(data.shape, dtype))
        assert (payload.nbytes < data.nbytes) != np.shares_memory(payload, data) or not size
        assert TwoValued().decode(payload, dense_spec(data.shape, dtype)).tobytes() == data.tobytes()


@pytest.mark.parametrize(("codec", "dtype"), [(TwoValued(), "float32"), (Lossless(), "float64")])
def test_what_was_passed_on_comes_back_from_memory_that_is_not_aligned(codec: Codec, dtype: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, 8000, np.uint8).view(dtype)
    spec = dense_spec(data.shape, dtype)
    payload = as_bytes(codec.encode(data, spec))
    moved = np.zeros(payload.size + 1, np.uint8)[1:]
    moved[:] = payload
    back = codec.decode(moved, spec)
    assert back.flags.aligned
    assert back.tobytes() == data.tobytes()


def test_sparse_compresses_a_mask_of_runs() -> None:
    causal = np.tril(np.abs(normal(1 << 20)).reshape(-1, 256, 256) + np.float32(0.1))
    assert causal.nbytes / Sparse().encode(causal, dense_spec(causal.shape, "float32")).nbytes > 1.95


def test_dense_numbers_are_passed_on_unless_they_are_few_bytes_each() -> None:
    for dtype, shrinks in (("float32", False), ("bfloat16", True)):
        data = normal(1 << 18, dtype)
        payload = Lossless().encode(borrowed(data), dense_spec(data.shape, dtype))
        assert np.shares_memory(payload, data) != shrinks


def test_lossless_passes_on_what_only_the_sample_compressed() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).view(np.float32)
    ordinary = np.concatenate([contiguous_sample(np.arange(data.size), 1 << 12, 8), np.arange(1 << 17)])
    data[ordinary] = normal(ordinary.size)
    spec = dense_spec(data.shape, "float32")
    assert Lossless(min_ratio=1.01).encode(data, spec).nbytes < data.nbytes
    assert np.shares_memory(Lossless(min_ratio=1.15).encode(data, spec), data)


def test_sample_is_of_neighbours_from_all_over() -> None:
    sample = contiguous_sample(np.arange(10_000), 400, runs=4)
    assert sample.reshape(4, 100)[:, 0].tolist() == [0, 3300, 6600, 9900]
    assert (np.diff(sample.reshape(4, 100), axis=1) == 1).all()
    assert contiguous_sample(np.arange(10), 400, runs=4).tolist() == list(range(10))
