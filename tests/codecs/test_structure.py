"""What lossless codecs find in tensors, how small that makes them, and how much memory it takes meanwhile."""

import tracemalloc
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import zstandard
from codec_cases import CODECS, float_bits, spec_of

import tensorstash.codecs.wire.format as format_module
from tensorstash import kernels
from tensorstash.codecs import (
    Affine,
    FloatSplit,
    FrameOfReference,
    Lossless,
    PackBits,
    Shuffle,
    Sparse,
    TwoValued,
    Zstd,
)
from tensorstash.codecs.wire.entropy import contiguous_sample
from tensorstash.errors import CodecError
from tensorstash.host.arrays import Array, borrowed
from tensorstash.kernels.float_fields import field_widths
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec, opaque_bytes


def normal(size: int, dtype: str = "float32") -> Array:
    return float_bits(np.random.default_rng(0).standard_normal(size), dtype)


def ratio(codec: Codec, data: Array, dtype: str) -> float:
    return data.nbytes / codec.encode(data, spec_of(data.shape, dtype)).nbytes


def test_shuffled_rows_hold_byte_k_of_every_element_in_row_k() -> None:
    data = np.array([[0x04030201, 0x40302010]], np.uint32)
    planes = Shuffle().encode(data, spec_of(data.shape, "uint32"))
    assert planes.tolist() == [[0x01, 0x10], [0x02, 0x20], [0x03, 0x30], [0x04, 0x40]]


def test_zstd_stores_rows_that_do_not_compress_as_they_are() -> None:
    data = normal(1 << 18)
    spec = spec_of(data.shape, "float32")
    planes = Shuffle().encode(data, spec)
    payload = Zstd().encode(planes, Shuffle().encoded_spec(spec))
    lengths = payload[16:48].view("<u8").tolist()
    assert lengths[:2] == [1 << 18] * 2
    assert payload[48:][: 2 << 18].tobytes() == planes[:2].tobytes()
    assert lengths[3] < (1 << 18) * 0.36
    assert Zstd().encode(data, spec).nbytes > payload.nbytes


@pytest.mark.parametrize("level", [-7, 1, 3, 9, 19])
@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 17])
def test_zstd_adds_a_header_to_what_does_not_compress_and_no_more(level: int, size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    assert Zstd(level=level).encode(data, spec_of(data.shape, "uint8")).nbytes == size + 16


def test_zstd_brings_back_runs_of_bytes_whose_length_it_is_not_told() -> None:
    spec = opaque_bytes(spec_of((), "uint8"))
    for data in (np.zeros(0, np.uint8), np.zeros(99_999, np.uint8), np.random.default_rng(0).bytes(99_999)):
        run = np.frombuffer(data, np.uint8)
        for codec in (Zstd(), Lossless()):
            assert codec.decode(codec.encode(run, spec), spec).tobytes() == run.tobytes()


def test_zstd_looks_at_a_sample_and_leaves_the_row_alone_if_that_does_not_compress() -> None:
    row = np.zeros(1 << 18, np.uint8)
    places = contiguous_sample(np.arange(row.size), row.size // 16)
    row[places] = np.random.default_rng(0).integers(0, 256, places.size)
    assert Zstd().encode(row, spec_of(row.shape, "uint8")).nbytes == row.size + 16


def frames_of(size: int) -> bytes:
    """Return ``size`` zeros as frames of at most 1 MiB."""
    context = zstandard.ZstdCompressor(level=1)
    return b"".join(context.compress(bytes(min(1 << 20, size - start))) for start in range(0, size, 1 << 20))


@pytest.mark.parametrize("size", [100_000, 3 << 20])
def test_frames_of_another_length_are_refused(size: int) -> None:
    spec, unknown = spec_of((size,), "uint8"), opaque_bytes(spec_of((), "uint8"))
    header = b"ZST1" + bytes([1, 1, 0, 0]) + size.to_bytes(8, "little")
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(size))
    good = frames_of(size)
    payload = np.frombuffer(header + len(good).to_bytes(8, "little") + good, np.uint8)
    assert not Zstd().decode(payload, spec).any()
    bad = [frames_of(size - 1), frames_of(size + 1), good + frames_of(1), good[:-1], good[len(good) // 2 :], unsized]
    for frames in bad:
        payload = np.frombuffer(header + len(frames).to_bytes(8, "little") + frames, np.uint8)
        for known in (spec, unknown):
            with pytest.raises(CodecError):
                Zstd().decode(payload, known)
    claim = b"ZST1" + bytes([1, 1, 0, 0]) + (1 << 45).to_bytes(8, "little") + len(good).to_bytes(8, "little") + good
    with pytest.raises(CodecError, match="do not give"):
        Zstd().decode(np.frombuffer(claim, np.uint8), unknown)


def test_payload_that_asks_for_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = opaque_bytes(spec_of((), "uint8"))
    payload = Zstd().encode(np.zeros(1000, np.uint8), unknown)

    def nothing_left(nbytes: int) -> Array:
        raise MemoryError(f"{nbytes} bytes")

    monkeypatch.setattr(format_module, "aligned_empty", nothing_left)
    with pytest.raises(CodecError, match="asks for 1000 bytes"):
        Zstd().decode(payload, unknown)


def test_fields_of_another_length_are_refused() -> None:
    data = np.ones(3 << 16, np.float32)
    codec, spec = FloatSplit(), spec_of(data.shape, "float32")
    payload = codec.encode(data, spec).tobytes()
    lengths = np.frombuffer(payload[16:40], "<u8")
    for extra, frames in ((1, b""), (0, zstandard.ZstdCompressor().compress(bytes(5)))):
        end = payload[: len(payload) - extra] + frames
        changed = np.add(lengths.astype("<i8"), [0, 0, len(frames) - extra])
        with pytest.raises(CodecError):
            codec.decode(np.frombuffer(end[:16] + changed.tobytes() + end[40:], np.uint8), spec)


@pytest.mark.parametrize("codec", [FloatSplit(), Sparse(), Sparse(split_floats=True), Zstd()], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 5, 20, 100, 1000])
def test_small_tensors_grow_by_a_header_at_most(codec: Codec, size: int) -> None:
    for data in (normal(size), np.ones(size, np.float32), np.zeros(size, np.float32)):
        assert codec.encode(data, spec_of(data.shape, "float32")).nbytes <= data.nbytes + 16


def test_higher_levels_are_smaller() -> None:
    words = np.random.default_rng(0).integers(0, 50, 1 << 14)
    text = np.concatenate([np.frombuffer(b"saved tensor number %d " % word, np.uint8) for word in words.tolist()])
    spec = spec_of(text.shape, "uint8")
    sizes = [Zstd(level=level).encode(text, spec).nbytes for level in (-5, 1, 19)]
    assert sizes[2] < sizes[1] < sizes[0] / 1.5


@pytest.mark.parametrize("byte", [2, 0x80, 0xFF])
@pytest.mark.parametrize("place", [0, 600_000, 999_999])
def test_pack_bits_keeps_booleans_that_are_neither_0_nor_1(byte: int, place: int) -> None:
    flags = np.random.default_rng(0).integers(0, 2, 1_000_000, np.uint8)
    codec, spec = PackBits(), spec_of(flags.shape, "bool")
    assert codec.encode(flags.view(np.bool_), spec).nbytes == 16 + 125_000
    flags[place] = byte
    payload = codec.encode(flags.view(np.bool_), spec)
    assert payload.nbytes == 16 + 1_000_000
    assert codec.decode(payload, spec).tobytes() == flags.tobytes()


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0x80000000), (0x7F800001, 0x7FC00000), (0, 0x3FA00000), (5, 5), (0xFFFFFFFF, 0)]
)
@pytest.mark.parametrize("third", [None, 0, 65_535, 65_536, 199_999])
def test_two_valued_compares_every_element_as_bits(first: int, second: int, third: int | None) -> None:
    flags = np.random.default_rng(0).random(200_000) < 0.3
    bits = np.where(flags, np.uint32(second), np.uint32(first))
    if third is not None:
        bits[third] = 0x00000001
    codec, spec = TwoValued(), spec_of(bits.shape, "float32")
    payload = codec.encode(bits.view(np.float32), spec)
    assert codec.decode(payload, spec).tobytes() == bits.tobytes()
    packed = len(np.unique(bits)) <= 2
    assert payload.nbytes == (16 + 8 + 25_000 if packed else 800_000)
    assert np.shares_memory(payload, bits) != packed


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64"])
def test_two_values_are_packed_only_where_that_is_smaller_so_that_the_length_tells_what_it_is(dtype: str) -> None:
    for size in range(40):
        data = (np.arange(size) % 2).astype(dtype)
        payload = TwoValued().encode(data, spec_of(data.shape, dtype))
        assert (payload.nbytes < data.nbytes) != np.shares_memory(payload, data) or not size
        assert TwoValued().decode(payload, spec_of(data.shape, dtype)).tobytes() == data.tobytes()


def test_what_was_passed_on_comes_back_from_memory_that_is_not_aligned() -> None:
    data = normal(100)
    moved = np.zeros(401, np.uint8)[1:]
    moved[:] = data.view(np.uint8)
    assert TwoValued().decode(moved, spec_of((100,), "float32")).tobytes() == data.tobytes()


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 23, 24, 36, 399, 401])
def test_a_payload_of_two_values_that_was_cut_is_refused(cut: int) -> None:
    spec = spec_of((100,), "float32")
    payload = np.resize(TwoValued().encode(np.zeros(100, np.float32), spec), cut)
    with pytest.raises(CodecError):
        TwoValued().decode(payload, spec)


def test_two_valued_does_not_take_another_value_in_another_block() -> None:
    data = np.zeros(200_000, np.float32)
    data[10], data[100_000:100_005] = 1, 2
    codec, spec = TwoValued(), spec_of(data.shape, "float32")
    assert codec.decode(codec.encode(data, spec), spec).tobytes() == data.tobytes()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint64", "int16"])
@pytest.mark.parametrize("span", [0, 1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1])
def test_distances_need_the_bytes_of_the_range_wherever_that_lies(dtype: str, span: int) -> None:
    info = np.iinfo(dtype)
    for low in {int(info.min), -1, 0, 40, int(info.max) - span}:
        if not info.min <= low <= low + span <= info.max:
            continue
        data = np.full(70_000, low, dtype)
        data[-1] = low + span
        codec, spec = FrameOfReference(), spec_of(data.shape, dtype)
        payload = codec.encode(data, spec)
        assert codec.decode(payload, spec).tobytes() == data.tobytes()
        width = next(width for width in (0, 1, 2, 4, 8) if span < 2 ** (8 * width))
        prefix = 16 if width == data.itemsize else 16 + data.itemsize
        assert payload.nbytes == prefix + width * data.size


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_fields_join_to_what_they_were_taken_from(itemsize: int) -> None:
    floats = np.random.default_rng(0).integers(0, 256, 4096 * itemsize, np.uint8).view(f"u{itemsize}")
    fields = [np.empty(floats.size, f"u{width}") for width in field_widths(itemsize)]
    kernels.active.take_fields(floats, dict(enumerate(fields)))
    joined = np.empty_like(floats)
    kernels.active.join_fields(fields, joined)
    np.testing.assert_array_equal(joined, floats)
    exponents = (floats >> np.array(8 * itemsize - 9, floats.dtype)).astype(np.uint8)
    np.testing.assert_array_equal(fields[-1], exponents)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1.19), ("bfloat16", 1.48), ("float16", 1.17)])
def test_split_floats_come_near_the_entropy_of_ordinary_floats(dtype: str, least: float) -> None:
    assert ratio(FloatSplit(), normal(1 << 20, dtype), dtype) > least


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("level", [1, 2, 3])
def test_split_floats_that_repeat_are_stored_once(level: int) -> None:
    data = np.tile(normal(500), 400)
    assert ratio(FloatSplit(level=level), data, "float32") > 20
    assert ratio(FloatSplit(level=level), normal(1 << 17), "float32") > 1.19


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_sparse_takes_a_bit_for_a_zero(dtype: str) -> None:
    data = np.where(np.random.default_rng(0).random(100_000) < 0.9, 0, normal(100_000) * 100 + 1000).astype("f4")
    data = data.astype("i8") if dtype == "int64" else float_bits(data, dtype)
    payload = Sparse().encode(data, spec_of(data.shape, dtype))
    assert payload.nbytes <= 16 + 24 + np.count_nonzero(data) * data.itemsize + 12_500


def test_sparse_compresses_a_mask_of_runs() -> None:
    causal = np.tril(np.abs(normal(1 << 20)).reshape(-1, 256, 256) + np.float32(0.1))
    assert ratio(Sparse(), causal, "float32") > 1.95
    assert ratio(Sparse(split_floats=True), causal, "float32") > 2.2


def test_negative_zero_is_not_zero() -> None:
    data = np.zeros(10_000, np.float32)
    data[7] = -0.0
    spec = spec_of(data.shape, "float32")
    for codec in (Sparse(), TwoValued(), Lossless()):
        assert codec.decode(codec.encode(data, spec), spec).tobytes() == data.tobytes()


@cache
def kinds() -> dict[str, tuple[Array, str, bytes]]:
    rng = np.random.default_rng(0)
    size = 1 << 18
    mask = rng.random(size) < 0.1
    noise = rng.integers(0, 256, 4 * size, np.uint8)
    return {
        "boolean mask": (mask, "bool", b"PBT1"),
        "dropout scales": (np.where(mask, np.float32(0), np.float32(1 / 0.9)), "float32", b"TWO1"),
        "integer mask": (mask.astype(np.int64), "int64", b"TWO1"),
        "token numbers": (rng.integers(0, 50_000, size), "int64", b"NRW1"),
        "rectified": (np.maximum(normal(size), 0), "float32", b"SPR1"),
        "activations": (normal(size), "float32", b"EXP1"),
        "repeated activations": (np.tile(normal(128), size // 128), "float32", b"ZST1"),
        "bfloat16 activations": (normal(size, "bfloat16"), "bfloat16", b"EXP1"),
        "float16 activations": (normal(size, "float16"), "float16", b"EXP1"),
        "bytes of text": (np.frombuffer(b"saved tensors " * 20_000, np.uint8).copy(), "uint8", b"ZST1"),
        "noise": (noise.view(np.float32), "float32", b""),
        "random integers": (noise.view(np.int32), "int32", b""),
        "random bytes": (noise, "uint8", b""),
    }


@pytest.mark.parametrize("kind", kinds())
def test_lossless_chooses_by_content(kind: str) -> None:
    data, dtype, magic = kinds()[kind]
    spec = spec_of(data.shape, dtype)
    payload = Lossless(min_ratio=1.1).encode(borrowed(data), spec)
    assert Lossless().decode(payload, spec).tobytes() == data.tobytes()
    if magic:
        assert payload[:4].tobytes() == magic
        assert payload.nbytes * 1.1 <= data.nbytes
    else:
        assert np.shares_memory(payload, data)
        assert not payload.flags.writeable
        assert payload.nbytes == data.nbytes


def test_lossless_looks_again_where_the_sample_misled_it() -> None:
    data = np.where(np.random.default_rng(0).random(1 << 18) < 0.5, np.float32(0), np.float32(2))
    data[100_000:100_003] = 1, 3, 5
    spec = spec_of(data.shape, "float32")
    payload = Lossless().encode(data, spec)
    assert Lossless().decode(payload, spec).tobytes() == data.tobytes()
    assert payload.nbytes < 0.6 * data.nbytes


def test_dense_numbers_are_passed_on_unless_they_are_few_bytes_each() -> None:
    for dtype, shrinks in (("float32", False), ("bfloat16", True)):
        data = normal(1 << 18, dtype)
        payload = Lossless().encode(borrowed(data), spec_of(data.shape, dtype))
        assert np.shares_memory(payload, data) != shrinks


def test_lossless_passes_on_what_does_not_reach_the_ratio() -> None:
    data = normal(1 << 18)
    spec = spec_of(data.shape, "float32")
    assert Lossless(min_ratio=1.15).encode(data, spec).nbytes < data.nbytes / 1.15
    assert np.shares_memory(Lossless(min_ratio=1.3).encode(data, spec), data)


def test_lossless_passes_on_what_only_the_sample_compressed() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).view(np.float32)
    ordinary = np.concatenate([contiguous_sample(np.arange(data.size), 1 << 12, 8), np.arange(1 << 17)])
    data[ordinary] = normal(ordinary.size)
    spec = spec_of(data.shape, "float32")
    assert Lossless(min_ratio=1.01).encode(data, spec).nbytes < data.nbytes
    assert np.shares_memory(Lossless(min_ratio=1.15).encode(data, spec), data)


def test_lossless_refuses_the_payload_of_a_codec_that_does_not_take_the_dtype() -> None:
    spec = spec_of((4096,), "int64")
    payload = FloatSplit().encode(normal(4096), spec_of((4096,), "float32"))
    with pytest.raises(CodecError, match="begins with"):
        Lossless().decode(payload, spec)


def test_lossless_is_smaller_at_higher_levels() -> None:
    data = np.maximum(normal(1 << 18), 0)
    spec = spec_of(data.shape, "float32")
    assert Lossless(level=2).encode(data, spec).nbytes < 0.85 * Lossless(level=1).encode(data, spec).nbytes


def test_lossless_gives_an_aligned_array_from_a_payload_anywhere() -> None:
    data = np.random.default_rng(0).integers(0, 256, 8008, np.uint8)[:8000].view(np.float64)
    spec = spec_of(data.shape, "float64")
    anywhere = np.empty(8001, np.uint8)[1:]
    anywhere[:] = Lossless().encode(data, spec)
    back = Lossless().decode(anywhere, spec)
    assert back.flags.aligned
    assert back.tobytes() == data.tobytes()


def test_sample_is_of_neighbours_from_all_over() -> None:
    sample = contiguous_sample(np.arange(10_000), 400, runs=4)
    assert sample.reshape(4, 100)[:, 0].tolist() == [0, 3300, 6600, 9900]
    assert (np.diff(sample.reshape(4, 100), axis=1) == 1).all()
    assert contiguous_sample(np.arange(10), 400, runs=4).tolist() == list(range(10))


def traced(call: Callable[[], Array]) -> tuple[Array, int]:
    """Return what a call returns, and the most memory that it had allocated at one time, in bytes."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


with_header = pytest.mark.parametrize(
    "codec", [PackBits(), TwoValued(), FrameOfReference(), Sparse(), FloatSplit(), Zstd(), Affine()], ids=repr
)


def zeros(codec: Codec) -> tuple[Array, TensorSpec]:
    """Return the payload of 100 zeros, and their spec."""
    dtype = next(dtype for dtype in ("bool", "float32", "int64") if codec.accepts(spec_of((100,), dtype)))
    spec = spec_of((100,), dtype)
    return codec.encode(np.zeros(100, spec.carrier), spec), spec


@pytest.mark.parametrize("place", [0, 3, 6, 7])
@with_header
def test_header_of_another_format_is_refused(codec: Codec, place: int) -> None:
    payload, spec = zeros(codec)
    payload[place] ^= 1
    with pytest.raises(CodecError, match="it is not of this codec"):
        codec.decode(payload, spec)


@pytest.mark.parametrize("place", [4, 5])
@with_header
def test_a_mode_or_parameter_that_the_codec_does_not_write_is_refused(codec: Codec, place: int) -> None:
    payload, spec = zeros(codec)
    payload[place] ^= 64
    with pytest.raises(CodecError, match="unknown mode"):
        codec.decode(payload, spec)


@pytest.mark.parametrize("size", [0, 8, 15])
@with_header
def test_a_payload_shorter_than_its_header_is_refused(codec: Codec, size: int) -> None:
    payload, spec = zeros(codec)
    with pytest.raises(CodecError, match=f"got a payload of {size} bytes, expected a header of 16"):
        codec.decode(payload[:size], spec)


@cache
def large_tensors() -> list[tuple[Array, str]]:
    """Return tensors beside which a block is small."""
    rng = np.random.default_rng(0)
    size = 1 << 22
    mask = rng.random(size) < 0.5
    floats = normal(size)
    halves = float_bits(floats, "bfloat16")
    return [
        (mask, "bool"),
        (np.where(mask, floats, np.float32(0)), "float32"),
        (floats, "float32"),
        (rng.integers(0, 200, size), "int64"),
        (halves, "bfloat16"),
    ]


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != Zstd(level=9)], ids=repr)
def test_no_temporary_is_larger_than_the_payload_and_a_block(codec: Codec) -> None:
    spare = 16 * 8 << 16
    for data, dtype in large_tensors():
        spec = spec_of(data.shape, dtype)
        if not codec.accepts(spec):
            continue
        payload, most = traced(lambda codec=codec, data=data, spec=spec: codec.encode(borrowed(data), spec))
        assert most <= 2 * payload.nbytes + spare, dtype
        _, most = traced(lambda codec=codec, payload=payload, spec=spec: codec.decode(borrowed(payload), spec))
        assert most <= data.nbytes + payload.nbytes + spare, dtype


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("odd", [2, 3, 4, 128, 255])
@pytest.mark.parametrize("place", [0, 70_000])
def test_a_boolean_that_is_neither_0_nor_1_comes_back_as_it_was(odd: int, place: int) -> None:
    flags = np.zeros(70_001, np.uint8)
    flags[place] = odd
    for codec in (PackBits(), Lossless()):
        payload = codec.encode(flags.view(np.bool_), spec_of(flags.shape, "bool"))
        assert codec.decode(payload, spec_of(flags.shape, "bool")).view(np.uint8).tobytes() == flags.tobytes()
