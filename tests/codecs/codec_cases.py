"""The built-in codecs, with the options that tests use."""

from tensorstash.codecs import Affine, AsType, Lossless, PackBits, Sparse, TwoValued, Zstd
from tensorstash.protocols import Codec

CODECS: tuple[Codec, ...] = (
    Zstd(shuffle=True),
    Zstd(),
    PackBits(),
    TwoValued(),
    Lossless(),
    Sparse(),
    Affine(),
    Affine(bits=2, group_size=5, rounding="stochastic", seed=7),
    AsType(dtype="bfloat16"),
    AsType(dtype="float8_e4m3fn"),
)
