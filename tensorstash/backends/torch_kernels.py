"""Which codecs PyTorch runs where the tensor is, by the name of the codec."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tensorstash.backends.torch_fbgemm import affine_kernel
from tensorstash.protocols import Codec, Kernel
from tensorstash.spec import TensorSpec

Maker = Callable[[Any, TensorSpec], Kernel[Tensor] | None]
"""Returns the kernel of a codec for dense elements of a spec, or None where the device or the setting has none."""


def _on_device(codec: Codec, spec: TensorSpec) -> Kernel[Tensor] | None:
    if spec.device.partition(":")[0] not in _DEVICES:
        return None
    # Imports Triton, which takes time.
    from tensorstash.backends.torch_device_kernels import device_kernel

    return device_kernel(codec, spec)


_DEVICES = frozenset({"cuda", "xpu"})
_MAKERS: Mapping[str, tuple[Maker, ...]] = MappingProxyType(
    dict.fromkeys(("astype", "pack_bits", "two_valued"), (_on_device,)) | {"affine": (_on_device, affine_kernel)}
)
"""For each codec the makers of its kernels, the best first."""


def kernel(codec: Codec, spec: TensorSpec) -> Kernel[Tensor] | None:
    """Return the best kernel of ``codec`` on the device of ``spec``, or None if there is none."""
    made = (make(codec, spec) for make in _MAKERS.get(codec.name, ()))
    return next((kernel for kernel in made if kernel is not None), None)
