"""Codecs that run on devices: quantization in Triton, casts and masks in operators of PyTorch.

A kernel never waits for the device, so the size of its payload must follow from the spec, as that of
:class:`~tensorstash.codecs.affine.Affine` and :class:`~tensorstash.codecs.astype.AsType` does. A boolean whose byte is
neither 0 nor 1, for which :class:`~tensorstash.codecs.pack_bits.PackBits` stores the tensor as it is on the host, comes
back as true here, which is how PyTorch reads it. A NaN is cast to a NaN of the device's choice. Every other codec,
``float64``, and devices without Triton have no kernel: the tensor crosses, and is encoded on the host.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.abilities import Kernel
from tensorstash.backends.torch.layout import Unrecorded, payload
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.astype import AsType
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.kernels.dither import seed_word
from tensorstash.kernels.groups import Groups
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec


def device_kernel(codec: Codec, spec: TensorSpec) -> Kernel[Tensor] | None:
    """Return the kernel of a codec, or None for a codec or a spec that has none.

    Args:
        codec: it accepts ``spec``.
        spec: of the dense elements, on a device that Triton runs on.
    """
    if isinstance(codec, Affine) and codec.encoded_spec(spec).nbytes < spec.nbytes:  # else it is passed on as it is
        kernel = _AffineKernel(codec, spec)
        return kernel if kernel.fits else None
    if isinstance(codec, AsType) and hasattr(torch, codec.dtype) and spec.dtype != "float64":
        return _AsTypeKernel(codec, spec)
    if isinstance(codec, PackBits) and spec.numel:
        return _PackBitsKernel(spec)
    return None


class DeviceKernels:
    """The codecs that run on the devices of PyTorch; see :class:`tensorstash.abilities.Kernels`."""

    def kernel(self, codec: Codec, spec: TensorSpec, /) -> Kernel[Tensor] | None:
        if spec.device == "cpu" or not isinstance(codec, Affine | AsType | PackBits):
            return None
        from tensorstash.backends.torch.quantize import runs_on  # imports Triton, which takes time

        return device_kernel(codec, spec) if runs_on(spec.device.partition(":")[0]) else None

    payload = staticmethod(payload)


class _DeviceKernel(ABC):
    """The shared part of kernels: fresh memory on the device, and the state that PyTorch's operators run in.

    Args:
        spec: of the dense elements.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._device = torch.device(spec.device)

    def encode(self, dense: Tensor, /) -> Tensor:
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), self._current():
            return self._encode(dense)

    def decode(self, payload: Tensor, /) -> Tensor:
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), self._current():
            return self._decode(payload)

    @abstractmethod
    def _encode(self, dense: Tensor) -> Tensor: ...

    @abstractmethod
    def _decode(self, payload: Tensor) -> Tensor: ...

    def _current(self) -> AbstractContextManager[Any]:
        # Triton launches on the current device, whatever the tensors are on.
        if self._device.type == "cpu":
            return nullcontext()
        current: AbstractContextManager[Any] = torch.get_device_module(self._device).device(self._device)
        return current


class _AffineKernel(_DeviceKernel):
    def __init__(self, codec: Affine, spec: TensorSpec) -> None:
        from tensorstash.backends.torch import quantize

        super().__init__(spec)
        self._triton = quantize
        self._groups = Groups.of(spec.shape, codec.group_size)
        self._bits = codec.bits
        self.fits = quantize.fits(self._groups, codec.bits, self._dtype)
        self._seed = seed_word(codec.seed) if codec.rounding == "stochastic" else None
        (self._nbytes,) = codec.encoded_spec(spec).shape

    def _encode(self, dense: Tensor) -> Tensor:
        payload = torch.empty(self._nbytes, dtype=torch.uint8, device=self._device)
        self._triton.quantize(dense, payload, self._groups, self._bits, self._seed)
        return payload

    def _decode(self, payload: Tensor) -> Tensor:
        dense = torch.empty(self._spec.shape, dtype=self._dtype, device=self._device)
        self._triton.dequantize(payload, dense, self._groups, self._bits)
        return dense


class _AsTypeKernel(_DeviceKernel):
    def __init__(self, codec: AsType, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._narrow: torch.dtype = getattr(torch, codec.dtype)

    def _encode(self, dense: Tensor) -> Tensor:
        if self._narrow == torch.float8_e4m3fn:  # which has no infinity, and until PyTorch 2.13 became NaN
            most = torch.finfo(self._narrow).max
            dense = dense.clamp(-most, most)
        return dense.to(self._narrow)

    def _decode(self, payload: Tensor) -> Tensor:
        return payload.to(self._dtype)


class _PackBitsKernel(_DeviceKernel):
    def _encode(self, dense: Tensor) -> Tensor:
        count = self._spec.numel
        flags = torch.zeros(-(-count // 8) * 8, dtype=torch.uint8, device=self._device)
        torch.ne(dense.reshape(-1).view(torch.uint8), 0, out=flags[:count].view(torch.bool))
        return (flags.view(-1, 8) << self._places()).sum(1, dtype=torch.uint8)

    def _decode(self, payload: Tensor) -> Tensor:
        flags = (payload[:, None] >> self._places()) & 1
        return flags.view(-1)[: self._spec.numel].clone().view(torch.bool).view(self._spec.shape)

    def _places(self) -> Tensor:
        return torch.arange(8, dtype=torch.uint8, device=self._device)
