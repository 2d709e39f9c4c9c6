"""Elements as their difference, bit for bit, from the element before."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec


@dataclass(frozen=True, kw_only=True)
class Xor:
    """Combine each element with the one ``distance`` before it by exclusive or; smooth data becomes mostly zeros.

    Args:
        distance: in elements, 1 or more.

    Raises:
        ConfigError: it is not.

    >>> spec = TensorSpec((3,), (1,), 0, "uint8", "cpu")
    >>> Xor().encode(np.array([5, 5, 4], np.uint8), spec)
    array([5, 0, 1], dtype=uint8)
    """

    name: ClassVar[str] = "xor"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->array"
    distance: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.distance, int) or isinstance(self.distance, bool) or self.distance < 1:
            raise ConfigError(f"xor.distance: got {self.distance!r}, expected a whole number, 1 or more")

    def accepts(self, spec: TensorSpec, /) -> bool:
        return spec.shape != (-1,) and spec.itemsize <= 8

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        return spec

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        payload = data.copy()
        words, source = _words(payload), _words(data)
        words[self.distance :] ^= source[: -self.distance]
        return payload

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        if (data.dtype.name, data.shape) != (spec.carrier, spec.shape):
            raise CodecError(f"{self!r}: got {data.dtype}{data.shape}, expected {spec.carrier}{spec.shape}")
        array = data.copy()
        words = _words(array)
        for start in range(min(self.distance, words.size)):
            np.bitwise_xor.accumulate(words[start :: self.distance], out=words[start :: self.distance])
        return array


def _words(array: Array) -> Array:
    return array.reshape(-1).view(f"u{array.itemsize}")
