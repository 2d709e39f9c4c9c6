"""Codecs that run on devices.

A kernel never waits for the device, so the size of its payload must follow from the spec, as that of
:class:`~tensorstash.codecs.affine.Affine` and :class:`~tensorstash.codecs.astype.AsType` does. A boolean whose byte is
neither 0 nor 1, for which :class:`~tensorstash.codecs.pack_bits.PackBits` stores the tensor as it is on the host, comes
back as true here, which is how PyTorch reads it. Only :class:`~tensorstash.codecs.two_valued.TwoValued` waits, for the
device to tell whether the tensor is of two values: so no policy uses it but ``Encode(TwoValued())``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.abilities import Kernel
from tensorstash.backends.torch import operators as torch_operators
from tensorstash.backends.torch import triton as torch_triton
from tensorstash.backends.torch.layout import Unrecorded
from tensorstash.codecs.affine import MAGIC as AFFINE
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.astype import AsType
from tensorstash.codecs.pack_bits import MAGIC as PACK_BITS
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import MAGIC as TWO_VALUED
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.codecs.wire.format import CODED, HEADER_NBYTES, Header
from tensorstash.kernels.dither import seed_word
from tensorstash.kernels.groups import Groups
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def device_kernel(codec: Codec, spec: TensorSpec, operators: Any = None) -> Kernel[Tensor] | None:
    """Return the kernel of a codec, or None for a codec or a spec that has none.

    Args:
        codec: it accepts ``spec``.
        spec: of the dense elements, on any device that ``operators`` run on.
        operators: :mod:`~tensorstash.backends.torch.triton` or :mod:`~tensorstash.backends.torch.operators`; by default
            the former where it runs.
    """
    if operators is None:
        operators = torch_triton if torch_triton.runs_on(spec.device.partition(":")[0]) else torch_operators
    for kind, maker in _MAKERS:
        if isinstance(codec, kind):
            return maker(codec, spec, operators)
    return None


class _DeviceKernel(ABC):
    """What kernels share: fresh memory on the device, and the state that PyTorch's operators run in.

    Args:
        spec: of the dense elements.
        operators: what they run.
    """

    def __init__(self, spec: TensorSpec, operators: Any) -> None:
        self._spec = spec
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._operators = operators
        self._device = torch.device(spec.device)

    def encode(self, dense: Tensor, /) -> Tensor:
        """Return the payload in fresh memory."""
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), self._current():
            return self._encode(dense)

    def decode(self, payload: Tensor, /) -> Tensor:
        """Return the elements in fresh memory."""
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), self._current():
            dense = torch.empty(self._spec.shape, dtype=self._dtype, device=self._device)
            self._decode(payload, dense)
            return dense

    @abstractmethod
    def _encode(self, dense: Tensor) -> Tensor: ...

    @abstractmethod
    def _decode(self, payload: Tensor, dense: Tensor) -> None: ...

    def _bytes(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _current(self) -> AbstractContextManager[Any]:
        # Triton launches on the current device, whatever the tensors are on.
        if self._device.type == "cpu" or self._operators is not torch_triton:
            return nullcontext()
        current: AbstractContextManager[Any] = torch.get_device_module(self._device).device(self._device)
        return current


class _AffineKernel(_DeviceKernel):
    def __init__(self, codec: Affine, spec: TensorSpec, operators: Any) -> None:
        super().__init__(spec, operators)
        self._groups = Groups.of(spec.shape, codec.group_size)
        self._bits = codec.bits
        self._seed = seed_word(codec.seed) if codec.rounding == "stochastic" else None
        self._header = _words(Header(AFFINE, CODED, codec.bits, spec.numel))
        (self._nbytes,) = codec.encoded_spec(spec).shape

    def _encode(self, dense: Tensor) -> Tensor:
        payload = self._bytes(self._nbytes)
        self._operators.quantize(dense, payload, self._header, self._groups, self._bits, self._seed)
        return payload

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        self._operators.dequantize(payload, dense, self._groups, self._bits)


class _AsTypeKernel(_DeviceKernel):
    def __init__(self, codec: AsType, spec: TensorSpec, operators: Any) -> None:
        super().__init__(spec, operators)
        self._narrow: torch.dtype = getattr(torch, codec.dtype)

    def _encode(self, dense: Tensor) -> Tensor:
        payload = torch.empty(self._spec.shape, dtype=self._narrow, device=self._device)
        self._operators.convert(dense, payload)
        return payload

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        self._operators.convert(payload, dense)


class _PackBitsKernel(_DeviceKernel):
    def __init__(self, codec: PackBits, spec: TensorSpec, operators: Any) -> None:
        super().__init__(spec, operators)
        self._header = _words(Header(PACK_BITS, CODED, 0, spec.numel))

    def _encode(self, dense: Tensor) -> Tensor:
        payload = self._bytes(HEADER_NBYTES + -(-self._spec.numel // 8))
        self._operators.pack_flags(dense, payload, self._header)
        return payload

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        self._operators.unpack_flags(payload, dense)


class _TwoValuedKernel(_DeviceKernel):
    def __init__(self, codec: TwoValued, spec: TensorSpec, operators: Any) -> None:
        super().__init__(spec, operators)
        self._word = _SIGNED[spec.itemsize]
        self._marks_at = HEADER_NBYTES + 2 * spec.itemsize

    def _encode(self, dense: Tensor) -> Tensor:
        words = dense.reshape(-1).view(self._word)
        marks = self._bytes(-(-self._spec.numel // 8))
        found = torch.empty(2, dtype=torch.int64, device=self._device)
        limits = torch.iinfo(torch.int64)
        found[0].fill_(limits.max)
        found[1].fill_(limits.min)
        self._operators.mark_others(words, marks, found)
        least, largest = found.tolist()  # waits for the device
        if least < largest:
            return words.view(torch.uint8).clone()
        first = words[:1]
        second = torch.full_like(first, least) if least == largest else first
        return torch.cat([self._header(), first.view(torch.uint8), second.view(torch.uint8), marks])

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        words = dense.reshape(-1).view(self._word)
        if payload.numel() == self._spec.nbytes:
            words.view(torch.uint8).copy_(payload)
            return
        # Copies, for the sake of alignment.
        pair = payload[HEADER_NBYTES : self._marks_at].clone().view(self._word)
        self._operators.choose(payload[self._marks_at :], words, pair)

    def _header(self) -> Tensor:
        words = torch.empty(2, dtype=torch.int64, device=self._device)
        for k, word in enumerate(_words(Header(TWO_VALUED, CODED, 0, self._spec.numel))):
            words[k].fill_(word)
        return words.view(torch.uint8)


def _affine(codec: Affine, spec: TensorSpec, operators: Any) -> Kernel[Tensor] | None:
    if codec.encoded_spec(spec).nbytes >= HEADER_NBYTES + spec.nbytes:  # stored as it is
        return None
    groups = Groups.of(spec.shape, codec.group_size)
    if operators is torch_triton and not torch_triton.fits(groups, codec.bits, getattr(torch, spec.dtype)):
        operators = torch_operators
    return _AffineKernel(codec, spec, operators)


def _astype(codec: AsType, spec: TensorSpec, operators: Any) -> Kernel[Tensor] | None:
    if not hasattr(torch, codec.dtype):
        return None
    return _AsTypeKernel(codec, spec, torch_operators if spec.dtype == "float64" else operators)


def _pack_bits(codec: PackBits, spec: TensorSpec, operators: Any) -> Kernel[Tensor] | None:
    return _PackBitsKernel(codec, spec, operators) if spec.numel else None


def _two_valued(codec: TwoValued, spec: TensorSpec, operators: Any) -> Kernel[Tensor] | None:
    # Not of so few elements that the payload's size does not tell its mode.
    return _TwoValuedKernel(codec, spec, operators) if spec.numel >= 64 else None


_MAKERS: tuple[tuple[type, Callable[[Any, TensorSpec, Any], Kernel[Tensor] | None]], ...] = (
    (Affine, _affine),
    (AsType, _astype),
    (PackBits, _pack_bits),
    (TwoValued, _two_valued),
)


def _words(header: Header) -> tuple[int, int]:
    memory = np.empty(HEADER_NBYTES, np.uint8)
    header.write(memory)
    head, tail = memory.view(np.int64).tolist()
    return head, tail
