from tensorstash.codecs import Affine, Cast, PackBits, Planes, Zstd
from tensorstash.testing import CodecSuite


class TestPlanes(CodecSuite):
    codec = Planes()


class TestZstd(CodecSuite):
    codec = Zstd(level=3)


class TestPackBits(CodecSuite):
    codec = PackBits()


class TestAffine8(CodecSuite):
    codec = Affine(bits=8)


class TestAffine2Stochastic(CodecSuite):
    codec = Affine(bits=2, group_size=5, rounding="stochastic", seed=7)


class TestCastBfloat16(CodecSuite):
    codec = Cast(dtype="bfloat16")


class TestCastFloat8(CodecSuite):
    codec = Cast(dtype="float8_e5m2")
