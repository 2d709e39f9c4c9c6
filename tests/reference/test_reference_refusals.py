"""What the engine refuses, each with an error that names it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorstash.reference import (
    DeviceError,
    GraphReleasedError,
    HookError,
    InplaceError,
    Tensor,
    from_buffer,
    grad,
    ops,
    saved_tensors_hooks,
    tensor,
    zeros,
)
from tensorstash.reference.autograd.graph import hook_stack

BYTES = np.arange(64, dtype=np.uint8)


def leaf(*values: float) -> Tensor:
    return tensor([*values] or [1.0, 1.0], requires_grad=True)


def modified(x: Tensor, modify: Callable[[Tensor], object]) -> None:
    y = x.exp()
    loss = y.sum()
    modify(y)
    loss.backward()


def unpacked_as(wrong: Callable[[Tensor], object]) -> None:
    with saved_tensors_hooks(lambda x: x.detach(), wrong):
        y = leaf().exp()
    y.sum().backward()


def packed_and_written_to() -> None:
    with saved_tensors_hooks(lambda x: x.detach().mul_(0.0), lambda x: x):
        (leaf() * 1).exp()


def backward_twice() -> None:
    y = (leaf() * leaf()).sum()
    y.backward()
    y.backward()


def view_of_another_history() -> None:
    x = leaf() * 1
    view = x[0]
    x.mul_(2.0)
    view.exp()


MODIFIED = (
    r"one of the variables needed for gradient computation has been modified by an inplace operation: \[float32 \[2\]\]"
)
RECORDED = "is being used in an in-place operation"

REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (backward_twice, GraphReleasedError, r"second time.*retain_graph=True"),
    (lambda: zeros((1,)).backward(), RuntimeError, "does not require grad"),
    (lambda: leaf().exp().backward(), RuntimeError, "outputs of one element"),
    (lambda: leaf().exp().backward(zeros((3,))), RuntimeError, "must match it"),
    (lambda: grad(leaf(1.0) * 1, [zeros((1,))]), RuntimeError, "does not require grad"),
    (lambda: zeros((1,), "int64", requires_grad=True), RuntimeError, "only floating point tensors"),
    (lambda: (leaf() * 1).requires_grad_(False), RuntimeError, "requires_grad of a leaf"),
    (lambda: (leaf() * 1).as_strided((2, 2), (0, 0), 0).sum().backward(), NotImplementedError, r"use clone\(\)"),
    (packed_and_written_to, HookError, "modified the saved tensor in place"),
    (lambda: unpacked_as(lambda x: x.numpy()), HookError, "must return a tensor, got ndarray"),
    (lambda: unpacked_as(lambda x: x.reshape(1, 2)), HookError, r"\(1, 2\) on cpu, expected a float32 .* shape \(2,\)"),
    (
        lambda: modified(leaf(), lambda y: y.mul_(0.0)),
        InplaceError,
        rf"{MODIFIED}, .* of exp, is at version 1; expected version 0",
    ),
    (lambda: modified(leaf(), lambda y: y.detach()[0:1].mul_(0.0)), InplaceError, MODIFIED),
    (view_of_another_history, InplaceError, "view it again"),
    (lambda: leaf().add_(1.0), InplaceError, f"a leaf tensor that requires grad {RECORDED}"),
    (lambda: leaf()[0].add_(1.0), InplaceError, f"a view {RECORDED}"),
    (lambda: zeros((2, 1)).expand(2, 3).add_(1.0), InplaceError, r"single memory location; clone\(\) it"),
    (lambda: bool(zeros((2,))), ValueError, "size 1"),
    (lambda: bool(zeros((0,))), ValueError, "size 1"),
    (lambda: zeros((1, 3)).add_(zeros((2, 3))), ValueError, "does not fit"),
    (lambda: zeros((2,), "int64").add_(0.5), TypeError, "add got 0.5 and a tensor of int64"),
    (lambda: zeros((1,)) + zeros((1,), "float64"), TypeError, r"of float32 and float64; use astype\(\)"),
    (lambda: from_buffer(BYTES, (2,), (1,), 0, "bfloat16") * 2, TypeError, "not do in bfloat16"),
    (lambda: ops.add(zeros((3,)), [1.0, 2.0, 3.0]), TypeError, r"add got \[1.0, .*; use tensor\(\) on the array"),
    (lambda: zeros((3,)) * np.ones(3), TypeError, r"mul got array.*; use tensor\(\) on the array"),
    (lambda: zeros((1,)) + "1", TypeError, "add got '1' and a tensor of float32"),
    (lambda: zeros((1,)).astype("bfloat16"), TypeError, "not do in bfloat16"),
    (lambda: zeros((1,), "bfloat16"), TypeError, r"by from_buffer\(\)"),
    (lambda: leaf().numpy(), RuntimeError, "requires grad"),
    (lambda: zeros((2,), device="sim:0").numpy(), DeviceError, r"use \.to\('cpu'\) first"),
    (lambda: zeros((2,), device="sim:0") + zeros((2,)), DeviceError, "add .* on one device, got sim:0 and cpu"),
    (lambda: ops.add(1.0, 2.0), DeviceError, "on one device, got none"),
    (lambda: zeros((3,))[tensor([0], device="sim:1")], DeviceError, "on one device, got"),
    (lambda: from_buffer(BYTES, (30,), (1,), 6, "uint16"), ValueError, "ends at byte 66 of a storage of 64 bytes"),
    (lambda: from_buffer(BYTES.view(np.uint16), (2,), (1,), 0, "uint16"), ValueError, "flat, writable uint8"),
]


@pytest.mark.parametrize(("program", "error", "message"), REFUSALS)
def test_it_is_refused(program: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        program()


def test_one_element_is_true_or_false_and_one_that_no_step_repeats_is_written() -> None:
    assert [bool(zeros((1, 1))), bool(tensor(2.0)), bool(tensor([0.5], device="sim:0"))] == [False, True, True]
    for expanded in (zeros((2, 1)).expand(2, 1), zeros((1, 0)).expand(3, 0)):
        assert expanded.add_(1.0) is expanded


def test_gradients_are_of_one_tensor_as_of_several() -> None:
    x = leaf(1.0, 2.0)
    found = *grad((x * x).sum(), x), *grad((x * x).sum(), [x])
    assert [each is not None and each.tolist() for each in found] == [[2.0, 4.0]] * 2


def test_an_interrupt_that_passes_hooks_out_of_order_arrives() -> None:
    outer, inner = (saved_tensors_hooks(lambda x: x, lambda x: x) for _ in range(2))
    error = KeyboardInterrupt()
    outer.__enter__()
    inner.__enter__()
    assert not outer.__exit__(KeyboardInterrupt, error, None)
    assert "an inner scope is still open" in "".join(error.__notes__)
    inner.__exit__(None, None, None)
    assert not hook_stack()
