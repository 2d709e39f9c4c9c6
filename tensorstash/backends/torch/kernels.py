"""Which codecs PyTorch runs where the tensor is, by the name of the codec."""

from torch import Tensor

from tensorstash.abilities import Kernel
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

_CODECS = frozenset({"affine", "astype", "pack_bits", "two_valued"})


def kernel(codec: Codec, spec: TensorSpec) -> Kernel[Tensor] | None:
    """Return what runs ``codec`` on dense elements of ``spec``, or None where the device or the setting has nothing."""
    if codec.name not in _CODECS or spec.device == "cpu":
        return None
    # Imports Triton, which takes time.
    from tensorstash.backends.torch.device_kernels import device_kernel

    return device_kernel(codec, spec)
