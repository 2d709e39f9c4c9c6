"""Quantization to as many bits as each tensor needs, within an average."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tensorstash import kernels
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.wire.calibration import K, Measured
from tensorstash.codecs.wire.entropy import contiguous_sample
from tensorstash.codecs.wire.format import check_ratio
from tensorstash.errors import CodecError, ConfigError
from tensorstash.host.arrays import Array
from tensorstash.kernels.floats import FORMATS
from tensorstash.protocols import Codec, CodecKind
from tensorstash.spec import TensorSpec, contiguous_strides

WIDTHS: tuple[Literal[2, 4, 8], ...] = (2, 4, 8)
_SAMPLE = 1 << 15


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoAffine:
    """Quantize to 8, 4 or 2 bits, whichever suits each kind of tensor, within an average number of bits.

    A session measures what the first step saves: for every kind of tensor (module, shape, dtype) the relative squared
    error of each width, on a sample. From the second step on, each kind has one width, such that the sum of the errors,
    weighted with the number of elements, is small while the average of the bits keeps to the budget: all kinds start
    at 2 bits, and whichever lessens the sum most per bit spent is given more while the budget lasts. The same training
    makes the same choice. Until then, for kinds that were not seen in the first step, and outside of a session, 8 bits
    are used.

    Bits by sensitivity under a budget are the idea of GACT (Liu et al., ICML 2022, https://arxiv.org/abs/2206.11357),
    which measures the sensitivity of the gradient, in further steps, instead.

    Args:
        budget: bits per element on average, from 2 to 8; what scales and offsets take comes on top.
        group_size: as for :class:`~tensorstash.codecs.affine.Affine`.
        rounding: likewise.
        seed: likewise.

    Raises:
        ConfigError: a field out of its range.
    """

    name: ClassVar[str] = "auto_affine"
    lossless: ClassVar[bool] = False
    kind: ClassVar[CodecKind] = "array->array"

    budget: float = 4.0
    group_size: int = 128
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        check_ratio("auto_affine.budget", self.budget, WIDTHS[0])
        if self.budget > WIDTHS[-1]:
            raise ConfigError(f"auto_affine.budget: got {self.budget!r}, expected a number from 2 to 8")
        try:
            self.of(8)
        except ConfigError as error:
            raise ConfigError(str(error).replace("affine.", "auto_affine.", 1)) from error

    def of(self, bits: Literal[2, 4, 8]) -> Affine:
        """Return the codec of one width."""
        return Affine(bits=bits, group_size=self.group_size, rounding=self.rounding, seed=self.seed)

    def accepts(self, spec: TensorSpec, /) -> bool:
        """Whether the elements are ``float16``, ``bfloat16``, ``float32`` or ``float64``."""
        return self.of(8).accepts(spec)

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        """Return a run of bytes."""
        return self.of(8).encoded_spec(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the payload of 8 bits in fresh memory."""
        return self.of(8).encode(data, spec)

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the elements in fresh memory."""
        try:
            return self.of(8).decode(data, spec)
        except CodecError as error:
            raise error.at(repr(self)) from error

    def error_bound(self, data: Array, spec: TensorSpec, /) -> Array:
        """Return the largest absolute error of each element, which is that of 2 bits: the most that may be chosen."""
        return np.maximum(self.of(2).error_bound(data, spec), self.of(8).error_bound(data, spec))

    def measure(self, data: Array, spec: TensorSpec, /) -> Measured:
        """Return the relative squared error of each width, on a sample of up to 32768 elements."""
        whole = min(self.group_size, max(data.size, 1))
        sample = contiguous_sample(data.reshape(-1), max(_SAMPLE // whole, 4) * whole)
        sampled = TensorSpec(sample.shape, contiguous_strides(sample.shape), 0, spec.dtype, spec.device)
        value = _values(sample, spec)
        finite = np.isfinite(value)
        power = float((value[finite] ** 2).sum())
        errors = []
        for bits in WIDTHS:
            codec = self.of(bits)
            back = _values(codec.decode(codec.encode(sample, sampled), sampled), spec)
            errors.append(float(((back - value)[finite] ** 2).sum()) / power if power else 0.0)
        return tuple(errors)

    def choose(self, measured: Mapping[K, tuple[int, Measured]], /) -> Mapping[K, Codec]:
        """Return the codec of one width for each kind of tensor; pure.

        Args:
            measured: elements, and what :meth:`measure` gave, for each.
        """
        widths = dict.fromkeys(measured, 0)
        left = (self.budget - WIDTHS[0]) * sum(count for count, _ in measured.values())
        while True:
            best: K | None = None
            most = 0.0
            for key, (count, errors) in measured.items():
                step = widths[key]
                if step + 1 < len(WIDTHS) and count * (WIDTHS[step + 1] - WIDTHS[step]) <= left:
                    gain = (errors[step] - errors[step + 1]) / (WIDTHS[step + 1] - WIDTHS[step])
                    if gain > most:
                        best, most = key, gain
            if best is None:
                return {key: self.of(WIDTHS[step]) for key, step in widths.items()}
            left -= measured[best][0] * (WIDTHS[widths[best] + 1] - WIDTHS[widths[best]])
            widths[best] += 1


def _values(array: Array, spec: TensorSpec) -> Array:
    with np.errstate(invalid="ignore"):
        return (kernels.active.widen(array, spec.dtype) if spec.dtype in FORMATS else array).astype(np.float64)
