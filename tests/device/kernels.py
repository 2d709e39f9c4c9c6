"""A kernel for the simulated device, so that payloads stay on it: Triton runs on none that is simulated."""

import torch
from torch import Tensor

from tensorstash.abilities import Kernel
from tensorstash.backends.torch import kernels
from tensorstash.backends.torch.layout import Unrecorded
from tensorstash.codecs.affine import Affine
from tensorstash.kernels.groups import Groups
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec


class Rounded:
    """``Affine(bits=8)`` in operators of PyTorch, for finite numbers, whose payload is its own."""

    def __init__(self, codec: Affine, spec: TensorSpec) -> None:
        self._spec = spec
        self._groups = Groups.of(spec.shape, codec.group_size)
        (self._nbytes,) = codec.encoded_spec(spec).shape
        self._codes_at = self._nbytes - spec.numel
        self._tables_at = self._codes_at - 8 * self._groups.count

    def encode(self, dense: Tensor, /) -> Tensor:
        with Unrecorded(), torch.autocast(dense.device.type, enabled=False):
            values = self._by_group(dense.reshape(-1).float())
            low, high = values.amin(-1), values.amax(-1)
            scale = (high - low) / 255
            codes = ((values - low[:, None]) / torch.where(scale > 0, scale, 1)[:, None]).round()
            payload = torch.zeros(self._nbytes, dtype=torch.uint8, device=dense.device)
            payload[self._tables_at : self._codes_at] = torch.cat([scale, low]).view(torch.uint8)
            payload[self._codes_at :] = self._in_rows(codes).to(torch.uint8)
            return payload

    def decode(self, payload: Tensor, /) -> Tensor:
        with Unrecorded(), torch.autocast(payload.device.type, enabled=False):
            scale, low = payload[self._tables_at : self._codes_at].view(torch.float32).reshape(2, -1, 1)
            values = self._by_group(payload[self._codes_at :].float()) * scale + low
            return self._in_rows(values).to(getattr(torch, self._spec.dtype)).reshape(self._spec.shape)

    def _by_group(self, flat: Tensor) -> Tensor:
        groups = self._groups
        more = groups.per_row * groups.size - groups.length
        padded = torch.nn.functional.pad(flat.reshape(1, groups.rows, groups.length), (0, more), mode="replicate")
        return padded.reshape(groups.count, -1)

    def _in_rows(self, values: Tensor) -> Tensor:
        groups = self._groups
        return values.reshape(groups.rows, -1)[:, : groups.length].reshape(-1)


def put_kernels(device: str) -> None:
    """Let :class:`Rounded` be the kernel of a kind of device, for as long as the process runs."""
    found = kernels.kernel

    def kernel(codec: Codec, spec: TensorSpec, /) -> Kernel[Tensor] | None:
        is_there = spec.device.startswith(f"{device}:")
        if is_there and isinstance(codec, Affine) and codec.bits == 8 and spec.itemsize <= 4:
            return Rounded(codec, spec)
        return found(codec, spec)

    kernels.kernel = kernel
