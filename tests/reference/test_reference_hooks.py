"""Saved-tensor hooks: what the two frameworks document, and what they promise when things go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensorstash.reference import HookError, Tensor, no_grad, saved_tensors_hooks, tensor


def ones(requires_grad: bool = True) -> Tensor:
    return tensor([1.0, 1.0], requires_grad=requires_grad)


def count_packs(function: Callable[[], Any]) -> list[tuple[int, ...]]:
    seen = []

    def pack(x: Tensor) -> Tensor:
        seen.append(x.shape)
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        function()
    return seen


def test_what_a_formula_does_not_name_is_not_saved() -> None:
    x, c = ones(), ones(requires_grad=False)
    assert count_packs(lambda: (x + x).sum().reshape(1, 1) * 2.0) == []
    assert len(count_packs(lambda: x * c)) == 1
    assert len(count_packs(lambda: x * x)) == 2
    assert len(count_packs(lambda: x.exp())) == 1
    assert count_packs(lambda: c * c) == []
    with no_grad():
        assert count_packs(lambda: x * x) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x.numpy(), "must return a tensor, got ndarray"),
        (lambda x: None, "got NoneType"),
        (lambda x: x.reshape(1, 2), r"of shape \(1, 2\) on cpu, expected a float32 tensor of shape \(2,\)"),
        (lambda x: x.astype("float64"), "a float64 tensor"),
        (lambda x: x.to("sim:0"), "on sim:0, expected"),
    ],
)
def test_what_unpack_returns_is_checked(wrong: Callable[[Tensor], Any], message: str) -> None:
    with saved_tensors_hooks(lambda x: x.detach(), wrong):
        y = ones().exp()
    with pytest.raises(HookError, match=message):
        y.sum().backward()


def test_a_pack_hook_that_writes_to_its_argument_is_refused() -> None:
    with (
        pytest.raises(HookError, match="modified the saved tensor in place"),
        saved_tensors_hooks(lambda x: x.detach().mul_(0.0), lambda x: x),
    ):
        (ones() * 1).exp()
