"""Floats in a narrower format."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tensorstash import kernels
from tensorstash.codecs.payload import check_choice, check_data, check_shape, empty_array
from tensorstash.host.arrays import Array, payload_empty
from tensorstash.kernels.floats import FORMATS, widen
from tensorstash.kernels.groups import BLOCK
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec

_SOURCES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, kw_only=True, slots=True)
class AsType:
    """Store floats rounded to a narrower format, to nearest even, as frameworks round.

    ``float64`` is rounded to ``float32`` first, as frameworks do. NaNs stay NaN, infinities stay infinite, and numbers
    too large for the format become infinity. ``float8_e4m3fn`` has no infinity: there, all of that becomes 448,
    its largest number, as in PyTorch.

    Args:
        dtype: ``"bfloat16"``, ``"float16"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.

    Raises:
        ConfigError: another dtype.

    >>> from tensorstash.spec import TensorSpec
    >>> spec = TensorSpec((3,), (1,), 0, "float32", "cpu")
    >>> codec = AsType(dtype="float8_e5m2")
    >>> codec.decode(codec.encode(np.array([1, 1.2, 1e6], np.float32), spec), spec).tolist()
    [1.0, 1.25, inf]
    """

    name: ClassVar[str] = "astype"
    lossless: ClassVar[bool] = False
    kind: ClassVar[CodecKind] = "array->array"
    is_quick: ClassVar[bool] = True
    """Whether it takes hardly longer than a copy."""

    dtype: Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"] = "bfloat16"

    def __post_init__(self) -> None:
        check_choice("astype.dtype", self.dtype, FORMATS)

    @property
    def is_relative(self) -> bool:
        """Whether the error of each element is small relative to it, however small it is."""
        return self.dtype == "bfloat16"  # the range of float32

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are ordinary floats, wider than the target."""
        return spec.dtype in _SOURCES and 8 * spec.itemsize > FORMATS[self.dtype].nbits

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return the same shape with the narrower dtype."""
        return replace(spec, dtype=self.dtype)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the carrier bits of the rounded elements in fresh memory."""
        check_data(self, data, spec)
        target = self.encoded_spec(spec)
        encoded = payload_empty(target.nbytes).view(target.carrier).reshape(target.shape)
        kernels.convert(data.reshape(-1), spec.dtype, encoded.reshape(-1), self.dtype)
        return encoded

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        check_shape(self, data, self.encoded_spec(spec))
        array = empty_array(spec)
        kernels.convert(data.reshape(-1), self.dtype, array.reshape(-1), spec.dtype)
        return array

    def error_bound(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the largest absolute error of each element: half the distance of its neighbours in the format.

        For numbers that ``float8_e4m3fn`` saturates, the distance to 448; infinite for other finite elements that
        become infinite; 0 for infinities and NaNs that come back as such.
        """
        check_data(self, data, spec)
        target = FORMATS[self.dtype]
        flat, bound = data.reshape(-1), np.empty(spec.numel)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, BLOCK):
                block = flat[start : start + BLOCK]
                values = np.abs(widen(block, spec.dtype) if spec.dtype in FORMATS else block).astype(np.float64)
                bounds = np.maximum(target.roundoff * values, target.smallest / 2)
                if spec.dtype == "float64":
                    bounds = bounds * (1 + 2.0**-23) + 2.0**-24 * values + 2.0**-150
                if target.saturates:
                    bounds = np.maximum(bounds, values - target.largest)
                else:
                    bounds[values * (1 + 2.0**-23) >= target.threshold] = np.inf
                    bounds[np.isinf(values)] = 0
                bounds[np.isnan(values)] = 0
                bound[start : start + BLOCK] = bounds
        return bound.reshape(spec.shape)
