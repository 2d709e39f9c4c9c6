"""What every built-in codec does on top of what any codec must do, which tests/conformance checks."""

import dataclasses

import numpy as np
import pytest
from codec_cases import CODECS

import tensorstash.codecs as codecs_module
from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import borrowed
from tensorstash.protocols import Codec
from tensorstash.spec import DTYPES
from tensorstash.testing.contents import contents, dense_spec

every_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)


def accepted(codec: Codec) -> list[str]:
    return [dtype for dtype in DTYPES if codec.accepts(dense_spec((4, 5), dtype))]


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
                middle = following.decode(following.encode(borrowed(first), between), between)
                assert (middle.dtype, middle.shape) == (first.dtype, first.shape)
                assert not following.lossless or middle.tobytes() == first.tobytes()


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
