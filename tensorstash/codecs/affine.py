"""Quantization to 8, 4 or 2 bits, affine per group."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tensorstash.buffers import Array, aligned_empty, as_bytes
from tensorstash.codecs.bits import pack_codes, packed_nbytes, unpack_codes
from tensorstash.codecs.floats import FORMATS, narrow, widen
from tensorstash.codecs.groups import Groups
from tensorstash.codecs.noise import seed_word
from tensorstash.codecs.payload import (
    HEADER_NBYTES,
    Header,
    check_count,
    check_data,
    damaged,
    empty_array,
    plain_payload,
    read_header,
    split_sections,
)
from tensorstash.codecs.quantizer import Arithmetic, Quantizer, error_bounds
from tensorstash.codecs.settings import check_choice, check_integer
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes

MAGIC = b"AFF1"
_PLAIN, _CODED = 0, 1
_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """Quantize floats to ``bits`` bits with a scale and an offset per group of neighbours.

    Groups are those of :class:`~tensorstash.codecs.groups.Groups`: ``group_size`` neighbours along the last
    dimension, the last of a row shorter. A group from ``low`` to ``high`` has ``scale = (high - low) / (2**bits - 1)``;
    element x becomes the code ``round((x - low) / scale)`` and comes back as ``low + code * scale``, computed in
    ``float32`` (``float64`` for ``float64``) and rounded to the dtype of the tensor. Constant groups come back equal;
    the sign of a zero is lost. Groups that hold a NaN or an infinity, or whose range would overflow or underflow, are
    stored as they are and come back bit for bit. Payloads are at most 16 bytes larger than the data.

    Stochastic rounding rounds x up with the probability of its distance from the lower code, so that the expectation
    is x to within 2**-12 of a scale. The random bits are a function of ``seed``, the place of the element and the
    extremes of its group: the same tensor has the same payload on every device, and no generator of the user is
    touched.

    Payload: header (mode 0 plain, 1 coded; param bits, count elements), then the bytes; or the scale of every group,
    NaN for a group stored as it is, the lows of the groups, the codes (first in the lowest bits), and the elements of
    the groups stored as they are.

    Args:
        bits: 2, 4 or 8 per element.
        group_size: elements that share a scale, 1 or more.
        rounding: ``"nearest"`` (ties to even) or ``"stochastic"``.
        seed: of stochastic rounding, 0 or more.

    Raises:
        ConfigError: a field out of its range.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((4,), (1,), 0, "float32", "cpu")
    >>> codec = Affine(bits=2)
    >>> codec.decode(codec.encode(np.array([0, 1, 1.8, 3], np.float32), spec), spec).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """

    name: ClassVar[str] = "affine"
    lossless: ClassVar[bool] = False
    kind: ClassVar[CodecKind] = "array->array"

    bits: Literal[2, 4, 8] = 8
    group_size: int = 128
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("affine.bits", self.bits, (2, 4, 8))
        check_integer("affine.group_size", self.group_size, 1)
        check_choice("affine.rounding", self.rounding, ("nearest", "stochastic"))
        check_integer("affine.seed", self.seed, 0)

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are ``float16``, ``bfloat16``, ``float32`` or ``float64``."""
        return spec.dtype in _DTYPES

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes, whose length depends on what the tensor holds."""
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload in fresh memory.

        Raises:
            CodecError: ``data`` is not what ``spec`` says, or of no accepted dtype.
        """
        check_data(self, data, spec)
        flat = data.reshape(-1)
        groups = Groups.of(spec.shape, self.group_size)
        arithmetic = Arithmetic.of(spec.dtype)
        sizes = self._sizes(groups, spec)
        plain = Header(MAGIC, _PLAIN, self.bits, spec.numel)
        if sum(sizes) >= spec.nbytes:
            return plain_payload(plain, data)
        payload = aligned_empty(HEADER_NBYTES + sum(sizes))
        Header(MAGIC, _CODED, self.bits, spec.numel).write(payload)
        scale, low, packed = split_sections(self, payload[HEADER_NBYTES:], *sizes)
        scales, lows = scale.view(arithmetic.dtype), low.view(arithmetic.dtype)
        seed = seed_word(self.seed) if self.rounding == "stochastic" else None
        quantizer = Quantizer(self.bits, groups.longest, arithmetic, seed)
        whole: list[Array] = []
        with np.errstate(all="ignore"):
            for run in groups.runs():
                source = flat[run.elements]
                grid, codes = quantizer.quantize(_widened(source, spec), run)
                scales[run.groups], lows[run.groups] = grid.scale, grid.low
                pack_codes(codes, self.bits, packed, run.start)
                if grid.unusable is not None:
                    whole.append(as_bytes(source[np.repeat(grid.unusable, run.sizes)]))
        if not whole:
            return payload
        if sum(sizes) + sum(part.size for part in whole) >= spec.nbytes:
            return plain_payload(plain, data)
        return np.concatenate([payload, *whole])

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the elements in fresh memory.

        Raises:
            CodecError: the payload is not one of this codec and this spec.
        """
        header, body = read_header(self, data, MAGIC)
        check_count(self, header.count, spec)
        if header.param != self.bits or header.mode not in (_PLAIN, _CODED):
            raise damaged(self, f"mode {header.mode} with {header.param} bits")
        array = empty_array(self, spec.numel, spec)
        if header.mode == _PLAIN:
            split_sections(self, body, spec.nbytes)
            as_bytes(array)[:] = body
            return array
        groups = Groups.of(spec.shape, self.group_size)
        arithmetic = Arithmetic.of(spec.dtype)
        sizes = self._sizes(groups, spec)
        scale, low, packed, rest = split_sections(self, body, *sizes, max(body.size - sum(sizes), 0))
        scales, lows = scale.view(arithmetic.dtype), low.view(arithmetic.dtype)
        quantizer = Quantizer(self.bits, groups.longest, arithmetic, None)
        flat = array.reshape(-1)
        with np.errstate(all="ignore"):
            for run in groups.runs():
                codes = unpack_codes(packed, self.bits, run.start, run.length)
                values = quantizer.dequantize(codes, scales[run.groups], lows[run.groups], run)
                target = flat[run.elements]
                target[:] = narrow(values, spec.dtype) if spec.dtype in FORMATS else values
                kept = np.isnan(scales[run.groups])
                if kept.any():
                    rest = self._put_kept(rest, target, np.repeat(kept, run.sizes))
        if rest.size:
            raise damaged(self, f"{rest.size} bytes too many")
        return array

    def error_bound(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the largest absolute error of each element: half a scale to nearest, one in stochastic rounding.

        On top comes what the arithmetic and the dtype of the result lose; 0 for groups that come back exactly.

        Raises:
            CodecError: ``data`` is not what ``spec`` says, or of no accepted dtype.
        """
        check_data(self, data, spec)
        arithmetic = Arithmetic.of(spec.dtype)
        share = 0.5 if self.rounding == "nearest" else 1.0
        flat, bound = data.reshape(-1), np.empty(spec.numel)
        with np.errstate(all="ignore"):
            for run in Groups.of(spec.shape, self.group_size).runs():
                values = _widened(flat[run.elements], spec)
                bounds = error_bounds(values, run.starts, self.bits, share, arithmetic, FORMATS.get(spec.dtype))
                bound[run.elements] = np.repeat(bounds, run.sizes)
        return bound.reshape(spec.shape)

    def _sizes(self, groups: Groups, spec: TensorSpec) -> tuple[int, int, int]:
        table_nbytes = groups.count * np.dtype(Arithmetic.of(spec.dtype).dtype).itemsize
        return table_nbytes, table_nbytes, packed_nbytes(spec.numel, self.bits)

    def _put_kept(self, rest: Array, target: Array, kept: Array) -> Array:
        nbytes = int(np.count_nonzero(kept)) * target.itemsize
        if rest.size < nbytes:
            raise damaged(self, f"{nbytes - rest.size} bytes of the groups stored as they are do not follow")
        target[kept] = rest[:nbytes].view(target.dtype)
        return rest[nbytes:]


def _widened(source: Array, spec: TensorSpec) -> Array:
    return widen(source, spec.dtype) if spec.dtype in FORMATS else source
