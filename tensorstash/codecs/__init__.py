"""Codecs: reversible, or bounded-error, transforms of one buffer, as frozen values. NumPy defines their meaning."""

from tensorstash.codecs.affine import Affine
from tensorstash.codecs.astype import AsType
from tensorstash.codecs.lossless import Lossless
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.sparse import Sparse
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.codecs.zstd import Zstd

__all__ = ["Affine", "AsType", "Lossless", "PackBits", "Sparse", "TwoValued", "Zstd"]
