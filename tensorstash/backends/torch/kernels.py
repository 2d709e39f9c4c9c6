"""Codecs that run on devices: quantization in Triton, casts and masks in operators of PyTorch.

A kernel never waits for the device, so the size of its payload must follow from the spec, as that of
:class:`~tensorstash.codecs.affine.Affine` and :class:`~tensorstash.codecs.astype.AsType` does. A boolean whose byte is
neither 0 nor 1, for which :class:`~tensorstash.codecs.pack_bits.PackBits` stores the tensor as it is on the host, comes
back as true here, which is how PyTorch reads it. A NaN is cast to a NaN of the device's choice. Every other codec,
``float64``, and devices without Triton have no kernel: the tensor crosses, and is encoded on the host.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pkgutil import resolve_name
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

_Work = Callable[[Tensor], Tensor]


def device_kernel(codec: Codec, spec: TensorSpec) -> Kernel[Tensor] | None:
    """Return the kernel of a codec for a device that Triton runs on, or None for a codec or a spec that has none."""
    works: tuple[_Work, _Work] | None = None
    if isinstance(codec, Affine) and codec.encoded_spec(spec).nbytes < spec.nbytes:  # else it is passed on as it is
        works = _affine(codec, spec)
    elif isinstance(codec, AsType) and hasattr(torch, codec.dtype) and spec.dtype != "float64":
        works = _cast(codec, spec)
    elif isinstance(codec, PackBits) and spec.numel:
        works = _bits(spec)
    return works and _DeviceKernel(*works)


@cache
def runs_triton(kind: str) -> bool:
    """Whether Triton is there, which takes time to import, and has a driver for devices of a type of PyTorch's."""
    if find_spec("triton") is None:
        return False
    driver: Any = resolve_name("triton.runtime:driver")
    try:
        return bool(driver.active.get_active_torch_device().type == kind)
    except RuntimeError:  # which is how it says that there is no driver
        return False


class DeviceKernels:
    """The codecs that run on the devices of PyTorch; see :class:`tensorstash.abilities.Kernels`."""

    def kernel(self, codec: Codec, spec: TensorSpec, /) -> Kernel[Tensor] | None:
        kind = spec.device.partition(":")[0]
        has_one = kind != "cpu" and isinstance(codec, Affine | AsType | PackBits) and runs_triton(kind)
        return device_kernel(codec, spec) if has_one else None

    payload = staticmethod(payload)


@dataclass(frozen=True)
class _DeviceKernel:
    """A pair of functions, in the state that PyTorch's operators run in."""

    encoding: _Work
    decoding: _Work

    def encode(self, dense: Tensor, /) -> Tensor:
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), _current(dense.device):
            return self.encoding(dense)

    def decode(self, payload: Tensor, /) -> Tensor:
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), _current(payload.device):
            return self.decoding(payload)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    # Triton launches on the current device, whatever the tensors are on.
    if device.type == "cpu":
        return nullcontext()
    current: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return current


def _affine(codec: Affine, spec: TensorSpec) -> tuple[_Work, _Work] | None:
    from tensorstash.backends.torch import quantize

    groups, dtype = Groups.of(spec.shape, codec.group_size), getattr(torch, spec.dtype)
    if not quantize.fits(groups, codec.bits, dtype):
        return None
    seed = seed_word(codec.seed) if codec.rounding == "stochastic" else None
    (nbytes,) = codec.encoded_spec(spec).shape

    def encode(dense: Tensor) -> Tensor:
        payload = torch.empty(nbytes, dtype=torch.uint8, device=dense.device)
        quantize.quantize(dense, payload, groups, codec.bits, seed)
        return payload

    def decode(payload: Tensor) -> Tensor:
        dense = torch.empty(spec.shape, dtype=dtype, device=payload.device)
        quantize.dequantize(payload, dense, groups, codec.bits)
        return dense

    return encode, decode


def _cast(codec: AsType, spec: TensorSpec) -> tuple[_Work, _Work]:
    narrow, wide = getattr(torch, codec.dtype), getattr(torch, spec.dtype)

    def encode(dense: Tensor) -> Tensor:
        if narrow == torch.float8_e4m3fn:  # which has no infinity, and until PyTorch 2.13 became NaN
            most = torch.finfo(narrow).max
            dense = dense.clamp(-most, most)
        return dense.to(narrow)

    return encode, lambda payload: payload.to(wide)


def _bits(spec: TensorSpec) -> tuple[_Work, _Work]:
    def places(device: torch.device) -> Tensor:
        return torch.arange(8, dtype=torch.uint8, device=device)

    def encode(dense: Tensor) -> Tensor:
        flags = torch.zeros(-(-spec.numel // 8) * 8, dtype=torch.uint8, device=dense.device)
        torch.ne(dense.reshape(-1).view(torch.uint8), 0, out=flags[: spec.numel].view(torch.bool))
        return (flags.view(-1, 8) << places(dense.device)).sum(1, dtype=torch.uint8)

    def decode(payload: Tensor) -> Tensor:
        flags = (payload[:, None] >> places(payload.device)) & 1
        return flags.view(-1)[: spec.numel].clone().view(torch.bool).view(spec.shape)

    return encode, decode
