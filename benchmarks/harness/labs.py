"""Codecs by name, and what they get of a backend."""

from typing import Any

import numpy as np

import tensorstash as ts
from tensorstash.abilities import Kernel
from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec


def codecs_of(lines: str) -> tuple[Codec, ...]:
    """Return codecs from their lines, such as ``"shuffle zstd:level=9"``."""
    return tuple(ts.parse(line).codec for line in lines.split())


def dense_bits(backend: Any, tensor: Any) -> Array:
    """Return the elements of a tensor as codecs get them: carrier bits in the order of memory, private."""
    spec = backend.spec(tensor)
    return np.array(backend.to_host(tensor, spec)).reshape(spec.dense().shape)


def kernel_of(backend: Any, codec: Codec, spec: TensorSpec) -> Kernel[Any] | None:
    """Return the backend's own way to run a codec, if it has one."""
    return None if backend.kernels is None else backend.kernels.kernel(codec, spec)
