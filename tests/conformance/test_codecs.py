import pytest

from tensorstash import registry
from tensorstash.codecs import (
    Affine,
    AsType,
    AutoAffine,
    FloatSplit,
    FrameOfReference,
    Lossless,
    PackBits,
    Shuffle,
    Sparse,
    TwoValued,
    Zstd,
)
from tensorstash.testing import CodecSuite, FaultyCodec


class TestPlanes(CodecSuite):
    codec = Shuffle()


class TestZstd(CodecSuite):
    codec = Zstd(level=3)
    refused = ({"level": 99}, {"level": "fast"}, {"level": True})


class TestPackBits(CodecSuite):
    codec = PackBits()


class TestTwoValued(CodecSuite):
    codec = TwoValued()


class TestNarrow(CodecSuite):
    codec = FrameOfReference()


class TestExponents(CodecSuite):
    codec = FloatSplit()


class TestSparse(CodecSuite):
    codec = Sparse()


class TestLossless(CodecSuite):
    codec = Lossless()


class TestAffine8(CodecSuite):
    codec = Affine(bits=8)
    refused = ({"bits": 3}, {"group_size": 0}, {"rounding": "up"}, {"seed": -1})


@pytest.mark.usefixtures("nothing_is_compiled")
class TestAffine8InNumPy(TestAffine8):
    pass


class TestAffine2Stochastic(CodecSuite):
    codec = Affine(bits=2, group_size=5, rounding="stochastic", seed=7)


class TestAutoAffine(CodecSuite):
    codec = AutoAffine(budget=3.5)
    refused = ({"budget": 1.5}, {"budget": 9.0}, {"group_size": 0}, {"rounding": "up"}, {"seed": -1})


class TestAsTypeBfloat16(CodecSuite):
    codec = AsType(dtype="bfloat16")
    refused = ({"dtype": "float64"}, {"dtype": None})


class TestAsTypeFloat8(CodecSuite):
    codec = AsType(dtype="float8_e5m2")


class TestFaultyCodecWithoutItsFault(CodecSuite):
    codec = FaultyCodec(fault="encode_error", numel=10**9)
    is_registered = False
    refused = ({"fault": "melts"},)


def test_every_registered_codec_is_here() -> None:
    here = [suite for suite in CodecSuite.__subclasses__() if suite.__module__ == __name__]
    assert {suite.codec.name for suite in here if suite.is_registered} == set(registry.names("codecs"))
