"""What every built-in codec does on top of what any codec must do, which tests/conformance checks."""

import dataclasses

import numpy as np
import pytest
from codec_cases import CODECS

import tensorstash.codecs as codecs_module
from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array, as_bytes, borrowed
from tensorstash.protocols import Codec, SupportsErrorBound
from tensorstash.spec import DTYPES, TensorSpec
from tensorstash.testing.contents import contents, dense_spec, float_values

every_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)


def accepted(codec: Codec) -> list[str]:
    return [dtype for dtype in DTYPES if codec.accepts(dense_spec((4, 5), dtype))]


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
    value, got = float_values(data, spec.dtype), float_values(back, spec.dtype)
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
        spec = dense_spec((3, 50), dtype)
        for following in CODECS:
            between = codec.encoded_spec(spec)
            if not following.accepts(between) or (codec.kind, following.kind) == ("array->bytes", "array->array"):
                continue
            for data in contents(spec).values():
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
        spec = dense_spec((2, 3), dtype)
        data = np.zeros((2, 3), spec.carrier)
        if not codec.accepts(spec):
            with pytest.raises(CodecError, match="does not accept"):
                codec.encode(data, spec)
            continue
        for other in (np.zeros((3, 2), spec.carrier), np.zeros((2, 3), "S3"), np.zeros((2, 6), spec.carrier)[:, ::2]):
            with pytest.raises(CodecError, match="expected a C-contiguous"):
                codec.encode(other, spec)
