"""The codec that looks at what a tensor holds, and chooses how to store it without loss."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tensorstash.codecs import float_split, frame_of_reference, pack_bits, sparse, two_valued, zstd
from tensorstash.codecs.wire.entropy import contiguous_sample
from tensorstash.codecs.wire.format import check_data, check_integer, check_ratio, damaged, passed_on
from tensorstash.errors import CodecError
from tensorstash.host.arrays import Array, as_bytes
from tensorstash.kernels.integers import unsigned
from tensorstash.protocols import Codec, CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

_SAMPLE_ELEMENTS = 1 << 12
_SAMPLE_RUNS = 8
_SMALLEST_NBYTES = 1 << 10
_MOST_ATTEMPTS = 2
_FEW_ZEROS_SHARE = 0.1
_FAST_LEVELS = 3

_SHARE_PER_COPY = 0.004
"""Share of the bytes that a codec has to save for each plain copy of the tensor that it takes as long as."""

_SMALL_ENOUGH_SHARE = 0.13
"""A sample that is stored in this share of its bytes, which is one bit of 8, is not tried with slower codecs."""

_COPIES_OF_4_BYTES = {"frame_of_reference": 3, "sparse": 5, "float_split": 12, "sparse and split": 13, "zstd, fast": 11}
_COPIES_OF_2_BYTES = {"frame_of_reference": 3, "sparse": 9, "float_split": 19, "sparse and split": 21, "zstd, fast": 20}
"""How many plain copies of a tensor encoding it takes as long as, of elements of 4 bytes and more, and of fewer: the
inverse of the column "encode" of ``python -m benchmarks codecs``."""
_COPIES_OF_INTEGERS_FAST = 60
_COPIES_ZSTD = 80

_BY_MAGIC: dict[bytes, Codec] = {
    pack_bits.MAGIC: pack_bits.PackBits(),
    two_valued.MAGIC: two_valued.TwoValued(),
    frame_of_reference.MAGIC: frame_of_reference.FrameOfReference(),
    sparse.MAGIC: sparse.Sparse(),
    float_split.MAGIC: float_split.FloatSplit(),
    zstd.MAGIC: zstd.Zstd(),
}

# These need no sample: they give up at the first element that does not fit, which in other tensors is an early one.
_ONE_BIT = (pack_bits.PackBits(), two_valued.TwoValued())


@dataclass(frozen=True, kw_only=True, slots=True)
class Lossless:
    """Store a tensor in the way that suits its content, bit for bit.

    What has two values takes one bit each. Else the codecs that accept the dtype are tried on a sample of about 4096
    elements, in runs of neighbours, and the best one encodes the tensor. Up to level 3 time counts: a codec has to save
    0.4 % of the bytes for each plain copy of the tensor that it takes as long as. Above, the smallest payload is the
    best. What does not shrink by ``min_ratio`` is passed on untouched and without a copy.

    Payload: the bytes of the tensor where it is as long as the tensor, else that of the chosen codec, which begins
    with its name.

    Args:
        level: Zstandard's compression level, from 1 to 22. From 2 on, what is not zero in a tensor of many zeros is
            compressed as well; from 4 on, Zstandard is tried on whole elements at this level too.
        min_ratio: how many times smaller the payload has to be, 1 or more. Dense numbers in float32 shrink 1.2 times,
            which takes longer than writing them to a disk does.

    Raises:
        ConfigError: a field out of its range.

    >>> import numpy as np
    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((4096,), (1,), 0, "int64", "cpu")
    >>> Lossless().encode(np.arange(4096) % 1000, spec).nbytes
    8216
    """

    name: ClassVar[str] = "lossless"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->bytes"

    level: int = 1
    min_ratio: float = 1.25

    def __post_init__(self) -> None:
        check_integer("lossless.level", self.level, 1, 22)
        check_ratio("lossless.min_ratio", self.min_ratio, 1)

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether it is an array or a run of bytes: always."""
        return True

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes of unknown length."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload, in fresh memory, or ``data`` itself as bytes where it is passed on."""
        check_data(self, data, spec)
        if spec.shape == (-1,):
            return zstd.Zstd(level=self.level).encode(data, spec)
        if data.nbytes >= _SMALLEST_NBYTES:
            for flags in _ONE_BIT:
                found = flags.packed(data, spec) if flags.accepts(spec) else None
                if found is not None and self._pays(found, data):
                    return found
            sample = contiguous_sample(data.reshape(-1), _SAMPLE_ELEMENTS, _SAMPLE_RUNS)
            candidates = self._candidates(sample, spec)
            for _ in range(_MOST_ATTEMPTS):
                codec = self._best(sample, spec, candidates)
                if codec is None:
                    break
                payload = codec.encode(data, spec)
                if self._pays(payload, data):
                    return payload
                del candidates[codec]
        return as_bytes(data)

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the array, in fresh memory, or ``data`` itself in the shape of the tensor where it was passed on."""
        if spec.shape == (-1,):
            return zstd.Zstd(level=self.level).decode(data, spec)
        if data.dtype != np.uint8 or data.ndim != 1:
            raise damaged(self, f"got a payload of {data.dtype}{data.shape}, expected a run of bytes")
        if data.size == spec.nbytes:
            return passed_on(data, spec)
        codec = _BY_MAGIC.get(data[:4].tobytes())
        if codec is None or not codec.accepts(spec):
            raise damaged(self, f"a payload of {data.size} bytes begins with {data[:4].tobytes()!r}")
        try:
            return codec.decode(data, spec)
        except CodecError as error:
            raise error.at(repr(self)) from error

    def _pays(self, payload: Array, data: Array) -> bool:
        return payload.nbytes * self.min_ratio <= data.nbytes and payload.nbytes < data.nbytes

    def _best(self, sample: Array, spec: TensorSpec, candidates: dict[Codec, int]) -> Codec | None:
        """Return the codec that does best on a sample, or None if none pays."""
        sampled = replace(spec, shape=sample.shape, strides=(1,))
        best, least = None, 1.0
        for codec, copies in candidates.items():
            stored = codec.encode(sample, sampled).nbytes / sample.nbytes
            score = stored + (_SHARE_PER_COPY * copies if self.level <= _FAST_LEVELS else 0)
            if stored * self.min_ratio <= 1 and score < least:
                best, least = codec, score
            if stored <= _SMALL_ENOUGH_SHARE:
                break
        return best

    def _candidates(self, sample: Array, spec: TensorSpec) -> dict[Codec, int]:
        """Return the codecs that may suit a tensor, the fastest first, and their time in copies of the tensor."""
        copies = _COPIES_OF_4_BYTES if spec.itemsize >= 4 else _COPIES_OF_2_BYTES
        fast = copies["zstd, fast"] if spec.kind == "float" else _COPIES_OF_INTEGERS_FAST
        zeros = sample.size - int(np.count_nonzero(unsigned(sample)))
        has_zeros = zeros > _FEW_ZEROS_SHARE * sample.size
        splits = not has_zeros or self.level > _FAST_LEVELS
        rows: list[tuple[Codec, int, bool]] = [
            (frame_of_reference.FrameOfReference(), copies["frame_of_reference"], True),
            (sparse.Sparse(), copies["sparse"], has_zeros),
            (zstd.Zstd(level=-5), fast, True),
            (float_split.FloatSplit(level=self.level), copies["float_split"], splits),
            (sparse.Sparse(split_floats=True), copies["sparse and split"], has_zeros and self.level > 1),
            (zstd.Zstd(level=self.level), _COPIES_ZSTD, self.level > _FAST_LEVELS or spec.itemsize == 1),
        ]
        return {codec: copies for codec, copies, wanted in rows if wanted and codec.accepts(spec)}
