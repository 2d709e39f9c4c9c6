"""Codecs that run on devices: quantization in Triton, casts and masks in operators of PyTorch.

A boolean whose byte is neither 0 nor 1 comes back as true, which is how PyTorch reads it. A NaN is cast to a NaN of the
device's choice. Every other codec, ``float64``, and devices without Triton have no kernel: the tensor crosses, and is
encoded on the host.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from tensorstash.abilities import Kernel
from tensorstash.backends.torch.layout import Unrecorded
from tensorstash.backends.torch.layout import payload as payload
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.astype import AsType
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.kernels.dither import seed_word
from tensorstash.kernels.groups import Groups
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

_Work = Callable[[Tensor], Tensor]


class _Kernel(NamedTuple):
    encode: _Work
    decode: _Work


def kernel(codec: Codec, spec: TensorSpec, /) -> Kernel[Tensor] | None:
    """See :meth:`tensorstash.abilities.Kernels.kernel`."""
    kind = spec.device.partition(":")[0]
    may_have = kind != "cpu" and isinstance(codec, Affine | AsType | PackBits)  # else Triton is imported for nothing
    return device_kernel(codec, spec) if may_have and runs_triton(kind) else None


def device_kernel(codec: Codec, spec: TensorSpec) -> Kernel[Tensor] | None:
    """Return the kernel of a codec for a device that Triton runs on, or None for a codec or a spec that has none."""
    if isinstance(codec, Affine) and codec.encoded_spec(spec).nbytes < spec.nbytes:  # else it is passed on as it is
        return _affine(codec, spec)
    if isinstance(codec, AsType) and hasattr(torch, codec.dtype) and spec.dtype != "float64":
        return _cast(codec, spec)
    return _bits(spec) if isinstance(codec, PackBits) and spec.numel else None


@cache
def runs_triton(kind: str) -> bool:
    """Whether Triton is there, and has a driver for devices of a type of PyTorch's."""
    if find_spec("triton") is None:
        return False
    driver: Any = resolve_name("triton.runtime:driver")
    try:
        return bool(driver.active.get_active_torch_device().type == kind)
    except RuntimeError:  # which is how it says that there is no driver
        return False


def _plainly(work: _Work) -> _Work:
    """Return the function in the state that PyTorch's operators run in."""

    def run(tensor: Tensor) -> Tensor:
        # Triton launches on the current device, whatever the tensors are on.
        device = torch.accelerator.device_index(tensor.device.index)
        with Unrecorded(), DisableTorchFunction(), _DisableTorchDispatch(), device:
            return work(tensor)

    return run


def _affine(codec: Affine, spec: TensorSpec) -> _Kernel | None:
    from tensorstash.backends.torch import triton_kernels

    groups, dtype = Groups.of(spec.shape, codec.group_size), getattr(torch, spec.dtype)
    if not triton_kernels.fits(groups, codec.bits, dtype):
        return None
    seed = seed_word(codec.seed) if codec.rounding == "stochastic" else None
    (nbytes,) = codec.encoded_spec(spec).shape

    @_plainly
    def encode(dense: Tensor) -> Tensor:
        encoded = torch.empty(nbytes, dtype=torch.uint8, device=dense.device)
        triton_kernels.quantize(dense, encoded, groups, codec.bits, seed)
        return encoded

    @_plainly
    def decode(encoded: Tensor) -> Tensor:
        dense = torch.empty(spec.shape, dtype=dtype, device=encoded.device)
        triton_kernels.dequantize(encoded, dense, groups, codec.bits)
        return dense

    return _Kernel(encode, decode)


def _cast(codec: AsType, spec: TensorSpec) -> _Kernel:
    narrow, wide = getattr(torch, codec.dtype), getattr(torch, spec.dtype)

    @_plainly
    def encode(dense: Tensor) -> Tensor:
        if narrow == torch.float8_e4m3fn:  # which has no infinity, and until PyTorch 2.13 became NaN
            most = torch.finfo(narrow).max
            dense = dense.clamp(-most, most)
        return dense.to(narrow)

    return _Kernel(encode, _plainly(lambda encoded: encoded.to(wide)))


def _bits(spec: TensorSpec) -> _Kernel:
    def places(device: torch.device) -> Tensor:
        return torch.arange(8, dtype=torch.uint8, device=device)

    @_plainly
    def encode(dense: Tensor) -> Tensor:
        flags = torch.zeros(-(-spec.numel // 8) * 8, dtype=torch.uint8, device=dense.device)
        torch.ne(dense.reshape(-1).view(torch.uint8), 0, out=flags[: spec.numel].view(torch.bool))
        return (flags.view(-1, 8) << places(dense.device)).sum(1, dtype=torch.uint8)

    @_plainly
    def decode(encoded: Tensor) -> Tensor:
        flags = (encoded[:, None] >> places(encoded.device)) & 1
        return flags.view(-1)[: spec.numel].clone().view(torch.bool).view(spec.shape)

    return _Kernel(encode, decode)
