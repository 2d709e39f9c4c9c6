"""Codecs that run on devices, as Triton kernels.

A kernel never waits for the device, so the size of its payload must follow from the spec, as that of
:class:`~tensorstash.codecs.affine.Affine` and :class:`~tensorstash.codecs.astype.AsType` does. A boolean whose byte is
neither 0 nor 1, for which :class:`~tensorstash.codecs.pack_bits.PackBits` stores the tensor as it is on the host, comes
back as true here, which is how PyTorch reads it. Every other codec, ``float64``, and devices without Triton have no
kernel: the tensor crosses, and is encoded on the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.abilities import Kernel
from tensorstash.backends.torch import triton
from tensorstash.backends.torch.layout import Unrecorded
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
    for kind, maker in _MAKERS:
        if isinstance(codec, kind):
            return maker(codec, spec)
    return None


class _DeviceKernel(ABC):
    """What kernels share: fresh memory on the device, and the state that PyTorch's operators run in.

    Args:
        spec: of the dense elements.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
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
        if self._device.type == "cpu":
            return nullcontext()
        current: AbstractContextManager[Any] = torch.get_device_module(self._device).device(self._device)
        return current


class _AffineKernel(_DeviceKernel):
    def __init__(self, codec: Affine, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._groups = Groups.of(spec.shape, codec.group_size)
        self._bits = codec.bits
        self._seed = seed_word(codec.seed) if codec.rounding == "stochastic" else None
        (self._nbytes,) = codec.encoded_spec(spec).shape

    def _encode(self, dense: Tensor) -> Tensor:
        payload = self._bytes(self._nbytes)
        triton.quantize(dense, payload, self._groups, self._bits, self._seed)
        return payload

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        triton.dequantize(payload, dense, self._groups, self._bits)


class _AsTypeKernel(_DeviceKernel):
    def __init__(self, codec: AsType, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._narrow: torch.dtype = getattr(torch, codec.dtype)

    def _encode(self, dense: Tensor) -> Tensor:
        payload = torch.empty(self._spec.shape, dtype=self._narrow, device=self._device)
        triton.convert(dense, payload)
        return payload

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        triton.convert(payload, dense)


class _PackBitsKernel(_DeviceKernel):
    def __init__(self, _: PackBits, spec: TensorSpec) -> None:
        super().__init__(spec)

    def _encode(self, dense: Tensor) -> Tensor:
        payload = self._bytes(-(-self._spec.numel // 8))
        triton.pack_flags(dense, payload)
        return payload

    def _decode(self, payload: Tensor, dense: Tensor) -> None:
        triton.unpack_flags(payload, dense)


def _affine(codec: Affine, spec: TensorSpec) -> Kernel[Tensor] | None:
    if codec.encoded_spec(spec).nbytes >= spec.nbytes:  # passed on as it is
        return None
    is_taken = triton.fits(Groups.of(spec.shape, codec.group_size), codec.bits, getattr(torch, spec.dtype))
    return _AffineKernel(codec, spec) if is_taken else None


def _astype(codec: AsType, spec: TensorSpec) -> Kernel[Tensor] | None:
    return _AsTypeKernel(codec, spec) if hasattr(torch, codec.dtype) and spec.dtype != "float64" else None


def _pack_bits(codec: PackBits, spec: TensorSpec) -> Kernel[Tensor] | None:
    return _PackBitsKernel(codec, spec) if spec.numel else None


_MAKERS: tuple[tuple[type, Callable[[Any, TensorSpec], Kernel[Tensor] | None]], ...] = (
    (Affine, _affine),
    (AsType, _astype),
    (PackBits, _pack_bits),
)
