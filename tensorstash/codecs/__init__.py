"""Codecs: reversible, or bounded-error, transforms of one buffer, as frozen values. NumPy defines their meaning."""

from tensorstash.codecs.affine import Affine
from tensorstash.codecs.cast import Cast
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.planes import Planes
from tensorstash.codecs.zstd import Zstd

__all__ = ["Affine", "Cast", "PackBits", "Planes", "Zstd"]
