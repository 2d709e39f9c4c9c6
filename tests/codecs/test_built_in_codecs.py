"""What every built-in codec does on top of what any codec must do, which tests/conformance checks."""

import dataclasses

import numpy as np
import pytest
from codec_cases import CODECS, FLOAT_FIELDS, contents, spec_of, to_float64

import tensorstash.codecs as codecs_module
from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array, as_bytes, borrowed
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
def test_no_field_takes_what_it_cannot_be(codec: Codec) -> None:
    assert eval(repr(codec), vars(codecs_module)) == codec
    assert not hasattr(codec, "__dict__")
    for field in dataclasses.fields(codec):
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


def test_the_reading_of_float_formats_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float16", "float32", "float64"):
        itemsize = DTYPES[dtype].itemsize
        bits = rng.integers(0, 256, 8000 * itemsize, np.uint8).view(f"u{itemsize}")
        with np.errstate(invalid="ignore"):
            expected = bits.view(dtype).astype(np.float64)
        np.testing.assert_array_equal(to_float64(bits, dtype), expected)
    assert set(FLOAT_FIELDS) == {"float16", "bfloat16", "float32", "float64", "float8_e5m2"}
