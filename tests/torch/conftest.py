"""What the tests of the PyTorch backend share: a backend, a pair of hooks that copies, and bitwise comparison."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.host.arrays import borrowed


class CopyingPair:
    """Copies all that can be stashed through host arrays, keeps the rest; counts both."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend
        self.copied: Counter[tuple[int, ...]] = Counter()
        self.kept: Counter[str] = Counter()
        self.unpacked = 0

    def hooks(self) -> AbstractContextManager[None]:
        return self.backend.hooks(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> Any:
        reason = self.backend.keep_reason(tensor)
        if reason is not None:
            self.kept[reason] += 1
            return self.backend.alias(tensor)
        self.copied[tuple(tensor.shape)] += 1
        spec = self.backend.spec(tensor)
        return self.backend.to_host(tensor, spec).copy(), spec

    def unpack(self, packed: Any) -> Tensor:
        self.unpacked += 1
        if isinstance(packed, Tensor):
            return packed
        data, spec = packed
        return self.backend.from_host(borrowed(data), spec)


@pytest.fixture
def backend() -> TorchBackend:
    return TorchBackend()


@pytest.fixture
def pair(backend: TorchBackend) -> CopyingPair:
    return CopyingPair(backend)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    run = plain.reshape(-1).clone(memory_format=torch.contiguous_format)
    return run.view(torch.uint8).numpy().tobytes()


@pytest.fixture
def same_bits() -> Callable[[Any, Any], bool]:
    """Whether two sequences of tensors (None allowed) are equal in kind, shape and every bit."""

    def one(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None:
            return a is b
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        return (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)

    return lambda left, right: len(left) == len(right) and all(map(one, left, right))
