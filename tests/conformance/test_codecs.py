from collections.abc import Mapping

import pytest
from codec_cases import CODECS

from tensorstash import registry
from tensorstash.codecs import Affine
from tensorstash.testing import CodecSuite, FaultyCodec

REFUSED: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "zstd": ({"level": 99}, {"level": "fast"}, {"level": True}),
    "affine": ({"bits": 3}, {"group_size": 0}, {"rounding": "up"}, {"seed": -1}),
    "astype": ({"dtype": "float64"}, {"dtype": None}),
}

OVERHEAD = 8 * 18
"""Of Zstd, the most of all: 8 bytes, and 8 for each of 16 rows; and of Lossless, which names the codec that it took."""

for number, codec in enumerate(CODECS):
    members = {"codec": codec, "refused": REFUSED.get(codec.name, ()), "overhead": OVERHEAD, "__module__": __name__}
    name = f"Test{type(codec).__name__}{number}"
    globals()[name] = type(name, (CodecSuite,), members)


@pytest.mark.usefixtures("nothing_is_compiled")
class TestAffineInNumPy(CodecSuite):
    codec = Affine(bits=8)
    overhead = 64


class TestFaultyCodecWithoutItsFault(CodecSuite):
    codec = FaultyCodec(fault="encode_error", numel=10**9)
    is_registered = False
    refused = ({"fault": "melts"},)


def test_every_registered_codec_is_here() -> None:
    here = [suite for suite in CodecSuite.__subclasses__() if suite.__module__ == __name__]
    assert {suite.codec.name for suite in here if suite.is_registered} == set(registry.names("codecs"))
