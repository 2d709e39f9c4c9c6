"""Saved-tensor hooks: what the two frameworks document, and what they promise when things go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorstash.reference import (
    HookError,
    InplaceError,
    PyLayer,
    Tensor,
    no_grad,
    saved_tensors_hooks,
    tensor,
)
from tensorstash.reference.ops import mul


def ones(requires_grad: bool = True) -> Tensor:
    return tensor([1.0, 1.0], requires_grad=requires_grad)


def bits(x: Tensor) -> tuple[np.ndarray, str]:
    return x.host_bits(), x.dtype.name


def from_bits(packed: tuple[np.ndarray, str]) -> Tensor:
    return tensor(packed[0], packed[1])


class Multiply(PyLayer):
    """The documentation's custom product."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        y = a * b
        ctx.save_for_backward(a, b)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensor()
        return dy * b, dy * a


@pytest.mark.parametrize("multiply", [mul, Multiply.apply], ids=["operation", "PyLayer"])
def test_documented_multiply_packs_and_unpacks_both_operands(multiply: Callable[..., Tensor]) -> None:
    log = []

    def pack(x: Tensor) -> Any:
        log.append(("Packing", x.tolist()))
        return bits(x)

    def unpack(packed: Any) -> Tensor:
        log.append(("UnPacking", packed[0].tolist()))
        return from_bits(packed)

    a, b = ones(), tensor([2.0, 2.0], requires_grad=True)
    with saved_tensors_hooks(pack, unpack):
        y = multiply(a, b)
    y.sum().backward()
    assert log == [
        ("Packing", [1.0, 1.0]),
        ("Packing", [2.0, 2.0]),
        ("UnPacking", [1.0, 1.0]),
        ("UnPacking", [2.0, 2.0]),
    ]
    assert a.grad.tolist() == [2.0, 2.0]
    assert b.grad.tolist() == [1.0, 1.0]


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
        saved_tensors_hooks(lambda x: x.detach().fill_(0), lambda x: x),
    ):
        (ones() * 1).exp()


def test_history_is_put_back_on_what_unpack_returns() -> None:
    x = tensor([2.0], requires_grad=True)
    seen: list[Tensor] = []

    class Observe(PyLayer):
        @staticmethod
        def forward(ctx: Any, leaf: Tensor, middle: Tensor, constant: Tensor) -> Tensor:
            out = leaf * 1
            ctx.save_for_backward(leaf, middle, constant, out)
            return out

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            seen.extend(ctx.saved_tensor())
            return g, g, None

    middle = x * 1
    with saved_tensors_hooks(bits, from_bits):
        y = Observe.apply(x, middle, tensor([1.0]))
    y.backward()
    assert [t.requires_grad for t in seen] == [True, True, False, True]
    assert [t.is_leaf for t in seen] == [True, False, True, False]
    assert seen[1].grad_fn is middle.grad_fn
    assert seen[3].grad_fn is y.grad_fn


def test_hooks_switch_the_version_check_off_and_captured_bytes_are_immune() -> None:
    x = ones()
    with saved_tensors_hooks(bits, from_bits):
        a = x * 1
        y = a * a
    a.add_(10.0)
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    a = x * 1
    y = a * a
    a.add_(10.0)
    with pytest.raises(InplaceError):
        y.sum().backward()
