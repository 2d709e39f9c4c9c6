"""What the tests of the Paddle backend share: a pair of hooks that copies, and bitwise comparison."""

import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.host.arrays import borrowed


class Packed:
    """What :class:`CopyingPair` packs; a weak reference tells whether it is still there."""

    def __init__(self, data: Any, spec: Any) -> None:
        self.data = data
        self.spec = spec


class CopyingPair:
    """Copies all that can be stashed through host arrays, keeps the rest; counts both."""

    def __init__(self, backend: PaddleBackend) -> None:
        self.backend = backend
        self.copied: Counter[tuple[int, ...]] = Counter()
        self.kept: Counter[str] = Counter()
        self.unpacked = 0
        self._alive: list[weakref.ref[Packed]] = []

    @property
    def live(self) -> int:
        """How many copies are alive."""
        return sum(packed() is not None for packed in self._alive)

    def hooks(self) -> AbstractContextManager[None]:
        return self.backend.hooks(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> Any:
        reason = self.backend.keep_reason(tensor)
        if reason is not None:
            self.kept[reason] += 1
            return self.backend.alias(tensor)
        self.copied[tuple(tensor.shape)] += 1
        spec = self.backend.spec(tensor)
        packed = Packed(self.backend.to_host(tensor, spec).copy(), spec)
        self._alive.append(weakref.ref(packed))
        return packed

    def unpack(self, packed: Any) -> Tensor:
        self.unpacked += 1
        if isinstance(packed, Tensor):
            return packed
        return self.backend.from_host(borrowed(packed.data), packed.spec)


def run_alone(program: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def leaf(values: Any, needs_grad: bool = True) -> Tensor:
    return paddle.to_tensor(np.asarray(values, np.float32), stop_gradient=not needs_grad)


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed).rand(*shape).astype(np.float32) + 0.25


def bits(tensor: Tensor | None) -> Any:
    """Shape and bits of a tensor, for comparison."""
    if tensor is None:
        return None
    plain = tensor.detach().clone().reshape([-1])
    if str(tensor.dtype) in ("paddle.bfloat16", "paddle.float8_e4m3fn", "paddle.float8_e5m2"):
        plain = plain.view("uint8")
    return tuple(tensor.shape), str(tensor.dtype), plain.numpy().tobytes()


def gradients(
    program: Callable[..., Tensor], arrays: Sequence[Any], hooks: AbstractContextManager[Any] | None = None
) -> list[Any]:
    """Run a program on inner tensors made from fresh leaves; return the bits of the leaves' gradients.

    Every element of the output weighs differently, so that a transposed gradient does not go unnoticed.
    """
    leaves = [leaf(array) for array in arrays]
    inner = [one * 1.0 for one in leaves]
    with hooks or nullcontext():
        out = program(*inner)
    weights = paddle.arange(1, 1 + int(np.prod(out.shape)), dtype="float32").reshape(out.shape)
    (out * weights).sum().backward()
    return [bits(one.grad) for one in leaves]
