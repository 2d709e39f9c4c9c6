"""What the tests of the PyTorch backend share: a backend, a pair of hooks that copies, and bitwise comparison."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_programs import Moment, differences
from submissions import Submissions
from torch import Tensor

from tensorstash.backends.torch.backend import TorchBackend
from tests.frameworks.copying import CopyingPair

collect_ignore = [] if torch.cuda.is_available() else ["test_torch_cuda.py"]


@pytest.fixture
def backend() -> TorchBackend:
    return TorchBackend()


@pytest.fixture
def pair(backend: TorchBackend) -> CopyingPair:
    return CopyingPair(backend)


def bits(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's elements in the order of its indices."""
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    run = dense.detach().resolve_conj().resolve_neg().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
    return run.view(torch.uint8).numpy().tobytes()


def are_same(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> bool:
    """Whether two sequences of tensors (None allowed) are equal in kind, shape and every bit."""

    def one(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None:
            return a is b
        return (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)

    return len(left) == len(right) and all(map(one, left, right))


@pytest.fixture
def same_bits() -> Callable[[Any, Any], bool]:
    return are_same


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch) -> Submissions:
    return Submissions.watch(monkeypatch)


@pytest.fixture
def as_without_hooks(tmp_path: Path, submissions: Submissions, same_bits: Any) -> Callable[[Any], None]:
    """Assert that a program computes, whatever a session does meanwhile, what it computes without."""

    def check(program: Callable[[Moment], object], third: int | None = None) -> None:
        assert differences(program, str(tmp_path), submissions, same_bits, third) == []

    return check
