"""A codec of your own: one bit per element says whether it is zero, and only the others are stored."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

import tensorstash as ts
from tensorstash.host.arrays import Array
from tensorstash.protocols import CodecKind
from tensorstash.spec import TensorSpec, opaque_bytes


@dataclass(frozen=True, kw_only=True)
class ZeroMask:
    """Lossless, and small for what comes out of a ReLU. Works on bits, so that -0.0 and NaN come back as they were."""

    name: ClassVar[str] = "zero_mask"
    lossless: ClassVar[bool] = True
    kind: ClassVar[CodecKind] = "array->bytes"

    def accepts(self, spec: TensorSpec, /) -> bool:
        return spec.kind == "float"

    def encoded_spec(self, spec: TensorSpec, /) -> TensorSpec:
        return opaque_bytes(spec)

    def encode(self, data: Array, spec: TensorSpec, /) -> Array:
        bits = data.reshape(-1).view(f"u{spec.itemsize}")
        present = bits != 0
        return np.concatenate([np.packbits(present), bits[present].view(np.uint8)])

    def decode(self, data: Array, spec: TensorSpec, /) -> Array:
        mask, rest = np.split(data, [-(-spec.numel // 8)])
        bits = np.zeros(spec.numel, f"u{spec.itemsize}")
        bits[np.unpackbits(mask, count=spec.numel).view(bool)] = rest.view(bits.dtype)
        return bits.view(spec.carrier).reshape(spec.shape)


def main() -> None:
    ts.register("codecs", "zero_mask", ZeroMask)  # a package does this with an entry point instead
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    x = torch.randn(512, 256)

    model(x).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    limits = ts.Limits(in_flight=0)  # nothing behind the computation, so that every run prints the same
    with ts.stash(ts.parse("zero_mask | disk_spill"), limits=limits) as session:
        loss = model(x).square().mean()
    loss.backward()

    stage = session.stats().stages["zero_mask"]
    print(f"ratio: {stage.bytes_in / stage.bytes_out:.2f}")
    found = [parameter.grad for parameter in model.parameters()]
    print("gradients bitwise equal:", all(map(torch.equal, found, expected)))


if __name__ == "__main__":
    main()
