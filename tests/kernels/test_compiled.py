"""What is compiled gives the bits that NumPy gives, and touches nothing beyond its arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from codec_cases import KINDS, LARGE, contents, from_bits, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstash import kernels
from tensorstash.codecs import FloatSplit, FrameOfReference, Lossless, PackBits, Sparse, TwoValued
from tensorstash.errors import CodecError
from tensorstash.host import native
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.kernels.floats import FORMATS
from tensorstash.protocols import Codec
from tensorstash.spec import DTYPES

pytestmark = pytest.mark.skipif(native.load() is None, reason="nothing is compiled here")

LOSSLESS: tuple[Codec, ...] = (
    PackBits(),
    TwoValued(),
    FrameOfReference(),
    Sparse(),
    Sparse(split_floats=True),
    FloatSplit(),
    Lossless(),
)


def both_ways(call: Callable[[], Array]) -> tuple[Any, Any]:
    """Return what a call gives compiled, and what in NumPy: bytes, or the message of its error."""

    def outcome() -> Array | str:
        try:
            return as_bytes(call())
        except CodecError as error:
            return str(error)

    # Both at once: memory that is used again would hold the right bytes wherever none are written.
    compiled = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "active", kernels.DEFINED)
        outcomes = compiled, outcome()
    compiled, defined = (result if isinstance(result, str) else result.tobytes() for result in outcomes)
    return compiled, defined


def shifted(array: Array, by: int) -> Array:
    """Return a read-only copy whose address is ``by`` bytes behind an aligned one."""
    room = np.empty(array.nbytes + by, np.uint8)[by:]
    room[:] = as_bytes(array)
    return borrowed(room.view(array.dtype).reshape(array.shape))


@pytest.mark.parametrize("codec", LOSSLESS, ids=repr)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (129, 33), (1025, 8), LARGE], ids=str)
def test_payloads_and_arrays_are_those_of_numpy(codec: Codec, shape: tuple[int, ...]) -> None:
    for dtype in (dtype for dtype in DTYPES if codec.accepts(spec_of((4, 5), dtype))):
        if shape == LARGE and dtype not in KINDS:
            continue
        spec = spec_of(shape, dtype)
        for name, data in contents(shape, dtype):
            payloads = both_ways(lambda data=data, spec=spec: codec.encode(borrowed(data), spec))
            assert payloads[0] == payloads[1], (name, dtype)
            described = codec.encoded_spec(spec)
            for stored in payloads:
                payload = np.frombuffer(stored, described.carrier).reshape(described.shape)
                compiled, numpy = both_ways(lambda payload=payload, spec=spec: codec.decode(payload, spec))
                assert compiled == numpy == as_bytes(data).tobytes(), (name, dtype)


@pytest.mark.parametrize("codec", LOSSLESS, ids=repr)
@settings(max_examples=30, deadline=None)
@given(draw=st.data())
def test_any_bits_at_any_address_go_both_ways(codec: Codec, draw: st.DataObject) -> None:
    dtype = draw.draw(st.sampled_from([dtype for dtype in DTYPES if codec.accepts(spec_of((4, 5), dtype))]))
    count = draw.draw(st.one_of(st.integers(0, 200), st.sampled_from([1023, 1024, 1025, 4096, 9001])))
    pattern = draw.draw(st.binary(min_size=1, max_size=64))
    mask = draw.draw(st.binary(min_size=1, max_size=8))
    spec = spec_of((count,), dtype)
    data = from_bits(np.frombuffer(pattern, np.uint8), spec.shape, dtype)
    bits = np.resize(np.unpackbits(np.frombuffer(mask, np.uint8)), count)
    words = data.view(f"V{spec.itemsize}")
    data = from_bits(np.where(bits, words, words[:1]), (count,), dtype)
    data = shifted(data, draw.draw(st.sampled_from([0, 1, 3])))
    payloads = both_ways(lambda: codec.encode(data, spec))
    assert payloads[0] == payloads[1]
    described = codec.encoded_spec(spec)
    for stored in payloads:
        payload = shifted(np.frombuffer(stored, described.carrier).reshape(described.shape), 1)
        assert both_ways(lambda payload=payload: codec.decode(payload, spec)) == (as_bytes(data).tobytes(),) * 2


@pytest.mark.parametrize("codec", LOSSLESS, ids=repr)
@pytest.mark.filterwarnings("error")
def test_damaged_payloads_end_as_in_numpy(codec: Codec) -> None:
    rng = np.random.default_rng(3)
    for dtype in (dtype for dtype in DTYPES if codec.accepts(spec_of((4, 5), dtype))):
        spec = spec_of((3, 50), dtype)
        for _, data in contents(spec.shape, dtype):
            payload = codec.encode(data, spec)
            flat = as_bytes(payload)
            for place in {*range(min(flat.size, 24)), *rng.integers(0, flat.size, 6).tolist()}:
                altered = flat.copy()
                altered[place] ^= rng.choice([1, 0x80, 0xFF])
                whole = altered.view(payload.dtype).reshape(payload.shape)
                compiled, numpy = both_ways(lambda whole=whole, spec=spec: codec.decode(whole, spec))
                assert compiled == numpy


@pytest.mark.parametrize("dtype", FORMATS)
def test_floats_are_converted_as_in_numpy(dtype: str) -> None:
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    hard = np.concatenate([high | np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    words = np.arange(1 << FORMATS[dtype].nbits).astype(f"u{FORMATS[dtype].nbits // 8}")
    with np.errstate(all="ignore"):
        for by in (0, 1):
            narrowed = both_ways(lambda by=by: kernels.active.narrow(shifted(hard, by), dtype))
            widened = both_ways(
                lambda by=by: kernels.active.widen(shifted(words.view(DTYPES[dtype].carrier), by), dtype)
            )
            assert narrowed[0] == narrowed[1]
            assert widened[0] == widened[1]


def test_sizes_that_do_not_fit_are_refused() -> None:
    module, words = native.load(), np.zeros(20, np.uint32)
    byte, wide = np.zeros(1, np.uint8), np.zeros(20, np.complex128)
    bytes_20, three = byte.repeat(20), byte.repeat(3)
    calls: dict[str, list[tuple[Any, ...]]] = {
        "pack_booleans": [(byte.repeat(9), byte)],
        "unpack_booleans": [(byte, byte.repeat(9))],
        "pack_two_values": [
            (words, words[:2].copy(), byte.repeat(2)),
            (words, words[:3].copy(), three),
            (words, bytes_20[:2], three),
            (wide, wide[:2].copy(), three),
        ],
        "unpack_two_values": [(byte.repeat(4), words[:2].copy(), words)],
        "mask_nonzero": [(words, byte.repeat(2)), (bytes_20, three), (wide, three), (words.view("V0"), byte[:0])],
        "gather_masked": [(words, three, byte.repeat(5)), (words, byte.repeat(4), words.copy())],
        "scatter_masked": [(words, byte.repeat(4), words.copy()), (words.view(np.uint16), three, words.copy())],
        "integer_range": [(words[:0], True), (wide, False), (bytes_20, False)],
        "subtract_base": [
            (words, words[:1].copy(), byte.repeat(19)),
            (words, words[:1].copy(), words.copy()),
            (words, words[:2].copy(), bytes_20),
            (words, byte, bytes_20),
        ],
        "add_base": [(byte.repeat(60), words[:1].copy(), words), (bytes_20, byte, words)],
        "narrow_floats": [
            (words, np.zeros(19, np.uint16), "bfloat16"),
            (words, byte.repeat(81), "float16"),
            (words, np.zeros(20, np.uint16), "float64"),
        ],
        "widen_floats": [(np.zeros(40, np.uint16), words.view(np.uint8)[:79], "bfloat16")],
        "take_fields": [
            (words, 0, np.zeros(19, np.uint16)),
            (words, 23, byte.repeat(20), 32, byte.repeat(20)),
            (words, -1, np.zeros(20, np.uint16)),
            (words, -2, byte.repeat(20)),
            (bytes_20, 0, byte.repeat(20)),
        ],
        "join_fields": [
            (words, bytes_20, bytes_20),
            (words, bytes_20, bytes_20, np.zeros(19, np.uint16)),
        ],
    }
    for name, cases in calls.items():
        for arrays in cases:
            with pytest.raises(ValueError, match="expected"):
                getattr(module, name)(*arrays)
    with pytest.raises(TypeError, match="at most 9 arguments"):
        module.take_fields(words, *(0, byte.repeat(20)) * 5)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 1000])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 1])
@pytest.mark.usefixtures("either_way")
def test_values_end_where_their_mask_does(itemsize: int, count: int, share: float) -> None:
    functions = kernels.active
    rng = np.random.default_rng(count)
    words = np.where(rng.random(count) < share, rng.integers(1, 60_000, count), 0).astype(f"u{itemsize}")
    mask = np.zeros(-(-count // 8), np.uint8)
    total = functions.mask_nonzero(words, mask)
    assert total == np.count_nonzero(words)
    assert mask.tobytes() == np.packbits(words != 0, bitorder="little").tobytes()
    guard = 99
    for size in {max(total - 1, 0), total, total + 1}:
        room = np.full(size + 80, guard, words.dtype)
        assert functions.gather_masked(words, mask, room[:size]) == (size == total)
        assert (room[size:] == guard).all()
        back = np.full(count + 80, guard, words.dtype)
        assert functions.scatter_masked(room[:size], mask, back[:count]) == (size == total)
        assert (back[count:] == guard).all()
        if size == total:
            assert room[:size].tolist() == words[words != 0].tolist()
            assert back[:count].tolist() == words.tolist()
