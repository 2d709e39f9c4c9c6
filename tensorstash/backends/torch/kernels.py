"""Which codecs PyTorch runs where the tensor is, by the name of the codec."""

from torch import Tensor

from tensorstash.abilities import Kernel
from tensorstash.backends.torch.layout import payload
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

_CODECS = frozenset({"affine", "astype", "pack_bits"})


class DeviceKernels:
    """The codecs that run on the devices of PyTorch; see :class:`tensorstash.abilities.Kernels`."""

    def kernel(self, codec: Codec, spec: TensorSpec, /) -> Kernel[Tensor] | None:
        """Return what runs ``codec`` on the device of ``spec``; None where the device or the setting has nothing."""
        if codec.name not in _CODECS or spec.device == "cpu":
            return None
        # Imports Triton, which takes time.
        from tensorstash.backends.torch.device_kernels import device_kernel
        from tensorstash.backends.torch.quantize import runs_on

        return device_kernel(codec, spec) if runs_on(spec.device.partition(":")[0]) else None

    payload = staticmethod(payload)
