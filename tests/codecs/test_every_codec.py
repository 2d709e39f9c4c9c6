"""What every codec must do, whatever it does."""

import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from codec_cases import CODECS, FLOAT_FIELDS, KINDS, LARGE, SHAPES, contents, from_bits, spec_of, to_float64
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorstash.codecs as codecs_module
from tensorstash.buffers import Array, as_bytes, borrowed
from tensorstash.errors import CodecError, ConfigError
from tensorstash.protocols import Codec, SupportsErrorBound
from tensorstash.spec import DTYPES, TensorSpec

every_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)


def accepted(codec: Codec) -> list[str]:
    return [dtype for dtype in DTYPES if codec.accepts(spec_of((4, 5), dtype))]


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(as_bytes(a).data) == bytes(as_bytes(b).data)


def assert_kept(codec: Codec, data: Array, back: Array, spec: TensorSpec) -> None:
    assert back.dtype == spec.carrier
    assert back.shape == spec.shape
    assert back.flags.c_contiguous
    if codec.lossless:
        assert same_bits(data, back)
        return
    assert isinstance(codec, SupportsErrorBound)
    bound = np.broadcast_to(codec.error_bound(borrowed(data), spec), data.shape)
    assert bound.dtype == np.float64
    assert not np.isnan(bound).any()
    value, got = to_float64(data, spec.dtype), to_float64(back, spec.dtype)
    with np.errstate(invalid="ignore"):
        error = np.abs(value - got)
    kept = (value == got) | (np.isnan(value) & np.isnan(got)) | (error <= bound)
    assert kept.all(), (value[~kept][:4], got[~kept][:4], bound[~kept][:4])


def assert_described(codec: Codec, payload: Array, spec: TensorSpec) -> None:
    described = codec.encoded_spec(spec)
    assert payload.dtype == described.carrier
    assert payload.flags.c_contiguous
    assert described.device == spec.device
    if described.shape == (-1,):
        assert payload.ndim == 1
    else:
        assert payload.shape == described.shape


@every_codec
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_keeps_every_content_of_every_accepted_dtype(codec: Codec, shape: tuple[int, ...]) -> None:
    for dtype in accepted(codec):
        if shape == LARGE and dtype not in KINDS:
            continue
        spec = spec_of(shape, dtype)
        for name, data in contents(shape, dtype):
            original = data.tobytes()
            payload = codec.encode(borrowed(data), spec)
            assert data.tobytes() == original, name
            assert_described(codec, payload, spec)
            if codec.lossless:
                assert payload.nbytes <= data.nbytes + 64, name
            kept = payload.tobytes()
            back = codec.decode(borrowed(payload), spec)
            assert payload.tobytes() == kept, name
            assert_kept(codec, data, back, spec)
            assert not back.flags.writeable or not np.shares_memory(back, payload)
            assert not payload.flags.writeable or not np.shares_memory(payload, data)
            assert same_bits(codec.encode(data, spec), payload), name
            again = codec.decode(payload.copy(), spec)
            assert same_bits(again, back), name


@cache
def accepted_somewhere(codec: Codec) -> list[str]:
    return accepted(codec)


@every_codec
@settings(max_examples=30, deadline=None)
@given(draw=st.data())
def test_round_trip_keeps_any_bits(codec: Codec, draw: st.DataObject) -> None:
    dtype = draw.draw(st.sampled_from(accepted_somewhere(codec)))
    shape = tuple(draw.draw(st.lists(st.integers(0, 9), max_size=4)))
    pattern = draw.draw(st.binary(min_size=1, max_size=64))
    data, spec = from_bits(np.frombuffer(pattern, np.uint8), shape, dtype), spec_of(shape, dtype)
    payload = codec.encode(borrowed(data), spec)
    assert_described(codec, payload, spec)
    assert_kept(codec, data, codec.decode(borrowed(payload), spec), spec)


@every_codec
def test_array_codecs_run_behind_one_another(codec: Codec) -> None:
    for dtype in accepted(codec):
        spec = spec_of((3, 50), dtype)
        for following in CODECS:
            between = codec.encoded_spec(spec)
            if not following.accepts(between) or (codec.kind, following.kind) == ("array->bytes", "array->array"):
                continue
            for _, data in contents(spec.shape, dtype):
                first = codec.encode(data, spec)
                second = following.encode(borrowed(first), between)
                assert_described(following, second, between)
                middle = following.decode(borrowed(second), between)
                if following.lossless:
                    assert same_bits(middle, first)
                    assert_kept(codec, data, codec.decode(borrowed(middle), spec), spec)


@every_codec
def test_configuration_is_the_codec(codec: Codec) -> None:
    assert eval(repr(codec), vars(codecs_module)) == codec
    assert hash(eval(repr(codec), vars(codecs_module))) == hash(codec)
    assert pickle.loads(pickle.dumps(codec)) == codec == deepcopy(codec)
    assert isinstance(codec, Codec)
    assert isinstance(codec, SupportsErrorBound) != codec.lossless
    assert not hasattr(codec, "__dict__")
    assert codec.kind in ("array->array", "array->bytes", "bytes->bytes")
    for field in dataclasses.fields(codec):
        assert field.kw_only
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(codec, field.name, getattr(codec, field.name))
        wrongs = [None, object(), [], -(10**9), "no such", float("nan")]
        wrongs += [0, 1] if isinstance(getattr(codec, field.name), bool) else [True]
        for wrong in wrongs:
            with pytest.raises(ConfigError, match=rf"^{codec.name}\.{field.name}: got "):
                dataclasses.replace(codec, **{field.name: wrong})


@every_codec
def test_what_is_not_accepted_is_refused(codec: Codec) -> None:
    for dtype in DTYPES:
        spec = spec_of((2, 3), dtype)
        data = np.zeros((2, 3), spec.carrier)
        if not codec.accepts(spec):
            with pytest.raises(CodecError, match="does not accept"):
                codec.encode(data, spec)
            continue
        for other in (np.zeros((3, 2), spec.carrier), np.zeros((2, 3), "S3"), np.zeros((2, 6), spec.carrier)[:, ::2]):
            with pytest.raises(CodecError, match="expected a C-contiguous"):
                codec.encode(other, spec)


def damaged_payloads(payload: Array, rng: np.random.Generator) -> list[Array]:
    """Return payloads that were cut, lengthened, altered or are of another kind."""
    flat = as_bytes(payload)
    cuts = sorted({0, 1, 7, 15, 16, 17, flat.size // 2, flat.size - 1} & set(range(flat.size)))
    damaged = [flat[:cut] for cut in cuts]
    damaged += [np.concatenate([flat, np.zeros(extra, np.uint8)]) for extra in (1, 8, 1000)]
    places = {*range(min(flat.size, 64)), *rng.integers(0, max(flat.size, 1), 30).tolist()} & set(range(flat.size))
    for place in sorted(places):
        altered = flat.copy()
        altered[place] ^= rng.choice([1, 0x80, 0xFF])
        damaged.append(altered)
    return [*damaged, rng.integers(0, 256, flat.size, np.uint8), flat.reshape(1, -1).copy(), flat.astype(np.float32)]


@every_codec
@pytest.mark.filterwarnings("error")
def test_damaged_payload_is_refused_or_gives_an_array_of_the_right_kind(codec: Codec) -> None:
    rng = np.random.default_rng(5)
    for dtype in accepted(codec):
        for shape in ((), (3, 50)):
            spec = spec_of(shape, dtype)
            for _, data in contents(shape, dtype):
                payload = codec.encode(data, spec)
                for altered in damaged_payloads(payload, rng):
                    refusal = None
                    try:
                        back = codec.decode(borrowed(altered), spec)
                    except CodecError as error:
                        refusal = str(error)
                    if refusal is None:
                        assert (back.dtype, back.shape) == (np.dtype(spec.carrier), spec.shape)
                        assert altered.nbytes == payload.nbytes, "a payload of another length was taken"
                    else:
                        assert repr(codec) in refusal


@every_codec
def test_payload_of_another_tensor_is_refused(codec: Codec) -> None:
    for dtype in accepted(codec):
        spec, other = spec_of((6, 50), dtype), spec_of((6, 51), dtype)
        for _, data in contents(other.shape, dtype):
            payload = codec.encode(data, other)
            with pytest.raises(CodecError):
                codec.decode(payload, spec)


@every_codec
def test_threads_do_not_disturb_one_another(codec: Codec) -> None:
    dtype = next(dtype for dtype in ("bool", "float32", "float64", "int64") if codec.accepts(spec_of((1,), dtype)))
    spec = spec_of((70_001,), dtype)
    tensors = [data for _, data in contents(spec.shape, dtype)]
    alone = [codec.encode(data, spec) for data in tensors]
    backs = [codec.decode(payload, spec) for payload in alone]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda data: codec.encode(data, spec), tensors * 4))
        returned = list(pool.map(lambda payload: codec.decode(payload, spec), alone * 4))
    assert all(same_bits(a, b) for a, b in zip(alone * 4, together, strict=True))
    assert all(same_bits(a, b) for a, b in zip(backs * 4, returned, strict=True))


def test_the_reading_of_float_formats_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float16", "float32", "float64"):
        itemsize = DTYPES[dtype].itemsize
        bits = rng.integers(0, 256, 8000 * itemsize, np.uint8).view(f"u{itemsize}")
        with np.errstate(invalid="ignore"):
            expected = bits.view(dtype).astype(np.float64)
        np.testing.assert_array_equal(to_float64(bits, dtype), expected)
    assert set(FLOAT_FIELDS) == {"float16", "bfloat16", "float32", "float64", "float8_e5m2"}
