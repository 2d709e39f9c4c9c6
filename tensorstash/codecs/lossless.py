"""The codec that looks at the content of a tensor, and chooses how to store it without loss."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.payload import Shrinking, check_integer, check_run, damaged, joined
from tensorstash.codecs.sparse import Sparse
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.codecs.zstd import Zstd, contiguous_sample
from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec, CodecKind
from tensorstash.spec import TensorSpec

_SAMPLE_ELEMENTS = 1 << 12
_SAMPLE_RUNS = 8
_SMALLEST_NBYTES = 1 << 10
_SLOWER_HAS_TO_SAVE = 0.9  # Zstandard on whole elements takes longest: it has to get a sample smaller by this

# These need no sample: they give up at the first element that does not fit, which in most tensors is an early one.
_ONE_BIT = (PackBits(), TwoValued())
# By their tag; Zstandard reads payloads of any level.
_CODECS: tuple[Codec, ...] = (*_ONE_BIT, Sparse(), Zstd(shuffle=True), Zstd())


@dataclass(frozen=True, kw_only=True, slots=True)
class Lossless(Shrinking):
    """Store a tensor in the way that suits its content, bit for bit.

    A tensor of two values takes one bit each. Else the codecs that accept the dtype are tried on a sample of about 4096
    elements, in runs of neighbours: zeros apart (:class:`~tensorstash.codecs.sparse.Sparse`), bytes apart and each
    plane compressed, and Zstandard on whole elements. The best one encodes the tensor. A tensor that does not shrink by
    ``min_ratio`` is passed on as it is.

    Payload: that of the chosen codec and, in the last byte, its tag.

    Args:
        level: Zstandard's compression level, from 1 to 22.
        min_ratio: how many times smaller the payload has to be, 1 or more. Dense numbers in float32 shrink 1.2 times,
            which takes longer than writing them to a disk does.

    Raises:
        ConfigError: a field out of its range.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((4096,), (1,), 0, "int64", "cpu")
    >>> Lossless().encode(np.arange(4096) % 1000, spec).nbytes < 8300
    True
    """

    name: ClassVar[str] = "lossless"
    kind: ClassVar[CodecKind] = "array->bytes"

    level: int = 1
    min_ratio: float = 1.25

    def __post_init__(self) -> None:
        check_integer("lossless.level", self.level, 1, 22)
        if type(self.min_ratio) not in (int, float) or not 1 <= self.min_ratio < float("inf"):
            raise ConfigError(f"lossless.min_ratio: got {self.min_ratio!r}, expected a finite number, 1 or more")

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether it is an array or a run of bytes: always."""
        return True

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        if spec.shape == (-1,):
            return Zstd(level=self.level).encode(data, spec)
        return Shrinking.encode(self, data, spec)

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        if spec.shape == (-1,):
            return Zstd(level=self.level).decode(data, spec)
        return Shrinking.decode(self, data, spec)

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        """Return the payload of the best codec, or None if none pays."""
        if data.nbytes < _SMALLEST_NBYTES:
            return None
        for tag, flags in enumerate(_ONE_BIT):
            found = flags.packed(data, spec) if flags.accepts(spec) else None
            if found is not None and self._pays(found.size + 1, data):
                return joined(found, np.array([tag], np.uint8))
        sample = contiguous_sample(data.reshape(-1), _SAMPLE_ELEMENTS, _SAMPLE_RUNS)
        for tag, codec in self._candidates(sample, spec):
            payload = codec.encode(data, spec)
            if self._pays(payload.size + 1, data):
                return joined(payload, np.array([tag], np.uint8))
        return None

    def unpacked(self, payload: Array, spec: TensorSpec, /) -> Array:
        check_run(self, payload, at_least=1)
        tag = int(payload[-1])
        if payload.size > spec.nbytes or tag >= len(_CODECS) or not _CODECS[tag].accepts(spec):
            raise damaged(self, f"no codec of {spec.dtype} has the tag {tag} and {payload.size} bytes")
        try:
            array: Array = _CODECS[tag].decode(payload[:-1], spec)
        except CodecError as error:
            raise error.at(repr(self)) from error
        return array

    def _pays(self, nbytes: int, data: Array) -> bool:
        return nbytes * self.min_ratio <= data.nbytes and nbytes < data.nbytes

    def _candidates(self, sample: Array, spec: TensorSpec) -> list[tuple[int, Codec]]:
        """Return the codecs that pay on a sample, each with its tag, the best first."""
        sampled = replace(spec, shape=sample.shape, strides=(1,))
        whole = Zstd(level=self.level)
        codecs: tuple[Codec, ...] = (Sparse(), Zstd(level=self.level, shuffle=True), whole)
        scores: list[tuple[float, int, Codec]] = []
        for tag, codec in enumerate(codecs, len(_ONE_BIT)):
            if codec.accepts(spec) and (spec.itemsize > 1 or codec is whole):
                stored = codec.encode(sample, sampled).nbytes
                if self._pays(stored, sample):
                    scores.append((stored / _SLOWER_HAS_TO_SAVE if codec is whole else stored, tag, codec))
        return [(tag, codec) for _, tag, codec in sorted(scores)]  # tags differ: no codecs are compared
