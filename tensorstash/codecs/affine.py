"""Quantization to 8, 4 or 2 bits, affine per group."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from tensorstash import kernels
from tensorstash.codecs.payload import Shrinking, check_choice, check_data, check_integer, check_run, empty_array
from tensorstash.host.arrays import Array, payload_empty
from tensorstash.kernels.dither import seed_word
from tensorstash.kernels.floats import FORMATS
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.quantize import Arithmetic, error_bounds, section_nbytes, widened
from tensorstash.spec import TensorSpec

_REMEMBERED = 1024
_DTYPES = ("float16", "bfloat16", "float32", "float64")


@lru_cache(_REMEMBERED)
def _layout(dtype: str, shape: tuple[int, ...], group_size: int, bits: int) -> tuple[Groups, int]:
    """Return the groups of tensors of one shape, and the bytes of their scales, lows and codes."""
    groups = Groups.of(shape, group_size)
    return groups, sum(section_nbytes(dtype, groups, bits))


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine(Shrinking):
    """Quantize floats to ``bits`` bits with a scale and an offset per group of neighbours.

    Groups are those of :class:`~tensorstash.kernels.groups.Groups`: ``group_size`` neighbours along the last
    dimension, the last of a row shorter. A group from ``low`` to ``high`` has ``scale = (high - low) / (2**bits - 1)``;
    element x becomes the code ``round((x - low) / scale)`` and comes back as ``low + code * scale``, computed in
    ``float32`` (``float64`` for ``float64``) and rounded to the dtype of the tensor. Codes of 4 and 2 bits are those of
    8 bits rounded once more, which adds 1/34 and 1/170 of a scale to the error. Constant groups come back equal; the
    sign of a zero is lost. NaNs and infinities come back as such: a group that holds one gives up its last three
    codes for them, which leaves a single code, for the middle of its range, where there are four. A number beyond
    2**126 comes back as 2**126, and a range below 2**-100 as its lower end (``float64``: 2**1022 and 2**-1000).

    Stochastic rounding rounds x up with the probability of its distance from the lower code, so that the expectation
    is x to within 2**-12 of a scale. The random bits are a function of ``seed``, the place of the element and the
    extremes of its group: the same tensor has the same payload on every device.

    Payload, of a size that the spec alone tells: the bytes of a tensor that would not get smaller; else the scale of
    every group, its sign bit set where codes are given up, the lows of the groups, and the codes, first in the lowest
    bits.

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
    is_quick: ClassVar[bool] = True

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
        """Return a run of bytes."""
        _, nbytes = _layout(spec.dtype, spec.shape, self.group_size, self.bits)
        return TensorSpec((min(nbytes, spec.nbytes),), (1,), 0, "uint8", spec.device, module=spec.module)

    def packed(self, data: Array, spec: TensorSpec, /) -> Array | None:
        groups, nbytes = _layout(spec.dtype, spec.shape, self.group_size, self.bits)
        if nbytes >= spec.nbytes:
            return None
        payload = payload_empty(nbytes)
        seed = seed_word(self.seed) if self.rounding == "stochastic" else None
        kernels.affine_encode(data, payload, spec.dtype, groups, self.bits, seed)
        return payload

    def unpacked(self, payload: Array, spec: TensorSpec, /) -> Array:
        groups, nbytes = _layout(spec.dtype, spec.shape, self.group_size, self.bits)
        check_run(self, payload, min(nbytes, spec.nbytes))
        array = empty_array(spec)
        kernels.affine_decode(payload, array, spec.dtype, groups, self.bits)
        return array

    def error_bound(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the largest absolute error of each element: half a scale to nearest, one in stochastic rounding.

        On top comes the rounding of the arithmetic and of the result's dtype; 0 for constant groups, NaNs and
        infinities.
        """
        check_data(self, data, spec)
        arithmetic = Arithmetic.of(spec.dtype)
        is_stochastic = self.rounding == "stochastic"
        groups = Groups.of(spec.shape, self.group_size)
        elements, bound = data.reshape(groups.rows, groups.length), np.empty((groups.rows, groups.length))
        with np.errstate(all="ignore"):
            for block in groups.blocks():
                values = widened(block.elements(elements), spec.dtype)
                bounds = error_bounds(values, self.bits, is_stochastic, arithmetic, FORMATS.get(spec.dtype))
                block.put(bounds, bound)
        return bound.reshape(spec.shape)
