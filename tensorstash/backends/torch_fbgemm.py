"""Quantization on the CPU with the row-wise operators that PyTorch carries for embedding tables (FBGEMM).

They run at the speed of memory, take and return plain bytes, and give the codes that
:class:`~tensorstash.codecs.quantizer.Quantizer` gives, bit for bit, except that they

- turn NaN into a finite number, without a word, and infinity into NaN: so each block is summed up first;
- divide by the range plus 1e-8, which is the range itself only from 0.25 on: so blocks with smaller ranges are
  multiplied by a power of two, which changes no code.

What does not fit is left to NumPy. Decoding rounds once where NumPy rounds twice: the last bit may differ. The
formulas are those of ``FloatOrHalfToFused8BitRowwiseQuantizedSBFloat`` and
``Fused8BitRowwiseQuantizedSBFloatToFloatOrHalf`` in FBGEMM's ``QuantUtils.cc``.
"""

from functools import cache
from math import isfinite
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.buffers import Array, adopted, borrowed
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.bits import coarsen
from tensorstash.codecs.groups import Run
from tensorstash.codecs.quantizer import FINEST, Quantizer
from tensorstash.spec import TensorSpec, contiguous_strides

_DTYPES = ("float16", "bfloat16", "float32")
_SMALL = 2.0**-60
_LEAST_SCALE = 0.25 / FINEST * (1 + 2.0**-20)
_LARGEST = 2.0**100
_PARAMETERS_NBYTES = 8
_FEW = 64
_BLOCK = 3 << 16
"""Elements that an operator works on at a time: as floats less than a MiB, which C allocators reuse, while they map
larger results anew each time, and pay with page faults."""


class FbgemmQuantizer(Quantizer):
    """The quantizer with FBGEMM's operators, on the memory of NumPy arrays."""

    # Some of the calls per run cost microseconds.
    block: ClassVar[int] = 1 << 19

    _unit = 1.0

    def quantize(self, source: Array, run: Run, codes: Array) -> tuple[Array, Array]:
        """Write the codes of a run, and return the scale and the low of each group."""
        if self.seed is None:
            values = _tensor(source, self.dtype)
            # A run with small ranges is likely to be followed by another.
            for unit in dict.fromkeys((self._unit, 1.0, _SMALL)):
                found = self._quantize(values, run, codes, unit)
                if found is not None:
                    self._unit = unit
                    return found
        return super().quantize(source, run, codes)

    def _interpolate(self, codes: Array, scale: Array, low: Array, run: Run, target: Array) -> None:
        """Write ``low + code * scale``, as carrier bits, into ``target``."""
        values = _tensor(target, self.dtype)
        for part in run.parts:
            elements, sources = part.of_elements(values), part.of_elements(codes)
            scales, lows = part.of_groups(scale), part.of_groups(low)
            step = max(_BLOCK // elements.shape[1], 1)
            memory = np.empty((min(step, part.rows) * scales.shape[1], part.size + _PARAMETERS_NBYTES), np.uint8)
            for start in range(0, part.rows, step):
                some = slice(start, start + step)
                rows = memory[: scales[some].size]
                rows[:, : part.size] = sources[some].reshape(-1, part.size)
                parameters = rows[:, part.size :].view(np.float32)
                parameters[:, 0], parameters[:, 1] = scales[some].reshape(-1), lows[some].reshape(-1)
                block = torch.ops.quantized.embedding_bag_byte_unpack(torch.from_numpy(rows))
                elements[some].copy_(block.view(-1, elements.shape[1]))

    def _quantize(self, values: Tensor, run: Run, codes: Array, unit: float) -> tuple[Array, Array] | None:
        """Write the codes of a run, and return scales and lows, or None where the operator does something else.

        Args:
            values: the elements.
            run: where they are.
            codes: to be overwritten.
            unit: a power of two that the elements are divided by.
        """
        # Elements that are copied first stay in the cache, and below what C allocators reuse, in smaller blocks.
        most = self.block if values.dtype == torch.float32 and unit == 1 and run.size else _BLOCK
        total = 0.0
        tables = np.empty(run.starts.size, np.uint64)
        for part in run.parts:
            elements, targets, table = part.of_elements(values), part.of_elements(codes), part.of_groups(tables)
            step = max(most // elements.shape[1], 1)
            for start in range(0, part.rows, step):
                some = slice(start, start + step)
                block = elements[some].reshape(-1, part.size).float()
                total += block.sum().item()
                if unit != 1:
                    block = block / unit
                rows: Array = torch.ops.quantized.embedding_bag_byte_prepack(block).numpy()
                targets[some] = rows[:, : part.size].reshape(-1, elements.shape[1])
                parameters = rows[:, part.size :].view(np.uint64)
                table[some] = parameters.reshape(-1, table.shape[1])
                if start == 0 and not _fits(*parameters[:_FEW].view(np.float32).T):
                    return None
        scale, low = np.ascontiguousarray(tables.view(np.float32).reshape(-1, 2).T)
        if not isfinite(total) or not _fits(scale, low):
            return None
        scale *= np.float32(unit)
        scale *= np.float32(FINEST // (2**self.bits - 1))
        low *= np.float32(unit)
        low += np.float32(0)
        if self.bits < 8:
            coarsen(codes, self.bits)
        return scale, low


class AffineKernel:
    """The codec :class:`~tensorstash.codecs.affine.Affine` on tensors in host memory; its payloads are the codec's.

    Args:
        codec: what to run.
        spec: of the dense elements.
    """

    def __init__(self, codec: Affine, spec: TensorSpec) -> None:
        self._codec = codec
        self._spec = spec

    def encode(self, dense: Tensor, /) -> Tensor:
        """Return the payload in fresh memory."""
        with DisableTorchFunction(), _DisableTorchDispatch():
            data = dense.detach().view(getattr(torch, self._spec.carrier)).numpy()
            return torch.from_numpy(self._codec.encode_with(FbgemmQuantizer, borrowed(data), self._spec))

    def decode(self, payload: Tensor, /) -> Tensor:
        """Return the elements in fresh memory."""
        with DisableTorchFunction(), _DisableTorchDispatch():
            data = self._codec.decode_with(FbgemmQuantizer, borrowed(payload.numpy()), self._spec)
            return _tensor(data, self._spec.dtype)


def affine_kernel(codec: Affine, spec: TensorSpec) -> AffineKernel | None:
    """Return the kernel of a codec for tensors of a spec, or None where the codec itself does as well."""
    fits = spec.device == "cpu" and spec.dtype in _DTYPES and codec.rounding == "nearest"
    return AffineKernel(codec, spec) if fits and _agrees() else None


def _fits(scale: Array, low: Array) -> bool:
    """Whether the operator has computed with the ranges themselves; not if one of its numbers is not finite."""
    if not (scale.max() <= _LARGEST and low.max() <= _LARGEST and low.min() >= -_LARGEST):
        return False
    return bool(scale.min() >= _LEAST_SCALE or ((scale >= _LEAST_SCALE) | (scale == 0)).all())


def _tensor(array: Array, dtype: str) -> Tensor:
    """Return a tensor over carrier bits."""
    # PyTorch warns of arrays that it could write to.
    return torch.from_numpy(array if array.flags.writeable else adopted(array)).view(getattr(torch, dtype))


@cache
def _agrees() -> bool:
    """Whether this build of PyTorch has the operators, and their codes are here what the codec says, bit for bit."""
    if not hasattr(torch.ops.quantized, "embedding_bag_byte_unpack"):
        return False
    numbers = np.arange(64 * 133, dtype=np.uint32) * np.uint32(0x9E3779B1)
    numbers >>= np.uint32(8)
    data = numbers.astype(np.float32).reshape(64, 133) - np.float32(2**23)
    return all(_agrees_on(data * np.float32(unit)) for unit in (2.0**-20, 2.0**-40))


def _agrees_on(data: Array) -> bool:
    codec, spec = Affine(group_size=50), TensorSpec(data.shape, contiguous_strides(data.shape), 0, "float32", "cpu")
    payload = codec.encode(data, spec)
    if not np.array_equal(codec.encode_with(FbgemmQuantizer, data, spec), payload):
        return False
    back = codec.decode_with(FbgemmQuantizer, payload, spec)
    return bool((np.abs(back.astype(np.float64) - data) <= codec.error_bound(data, spec)).all())
