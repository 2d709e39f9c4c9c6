"""Who owns what: with cyclic collection off, everything goes by reference counting, however deep."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import pytest

from tensorstash.reference import (
    InplaceError,
    MemorySpace,
    PyLayer,
    Tensor,
    grad,
    nn,
    no_grad,
    saved_tensors_hooks,
    tensor,
)

pytestmark = pytest.mark.usefixtures("no_cyclic_gc")


class Packed:
    """Stands in the graph for a tensor; counts the living."""

    living: ClassVar[weakref.WeakSet[Packed]] = weakref.WeakSet()

    def __init__(self, x: Tensor) -> None:
        self.bits, self.device = x.host_bits(), x.device
        self.living.add(self)


def hooks() -> saved_tensors_hooks:
    return saved_tensors_hooks(Packed, lambda p: tensor(p.bits, device=p.device))


class Saves(PyLayer):
    """Saves input, output and None, and keeps its raw output as an attribute besides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y, None)
        ctx.raw = y
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _, y, _ = ctx.saved_tensor()
        return g * y


def net(x: Tensor) -> Tensor:
    """Save inputs, own outputs and views; write in place, through a view too."""
    a = x * x
    a[0].mul_(x[1])
    a.add_(1.0)
    b = Saves.apply(a.softmax())
    return (b.exp().relu() * b.sigmoid()).reshape(-1).sum()


def device_leaf() -> Tensor:
    return tensor(np.linspace(0, 1, 6).reshape(2, 3), device="sim:0", requires_grad=True)


SCOPES: dict[str, Callable[[], Any]] = {
    "no hooks": nullcontext,
    "clone": lambda: saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()),
    "identity": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "packing": hooks,
}


@pytest.mark.parametrize("scope", SCOPES)
def test_dropped_graph_frees_every_saved_tensor(sim: MemorySpace, scope: str) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    with SCOPES[scope]():
        y = net(x)
    unused = y.exp()
    del y
    assert sim.allocated_bytes > held
    del unused
    assert sim.allocated_bytes == held
    assert not Packed.living


@pytest.mark.parametrize("scope", SCOPES)
def test_backward_frees_every_saved_tensor_while_the_loss_is_alive(sim: MemorySpace, scope: str) -> None:
    x = device_leaf()
    with SCOPES[scope]():
        loss = net(x)
    loss.backward()
    assert not Packed.living
    raw_attribute = 48  # what Saves keeps outside save_for_backward lives as long as the node
    assert sim.allocated_bytes == x.nbytes + x.grad.nbytes + loss.nbytes + raw_attribute
    del loss
    assert sim.allocated_bytes == x.storage.nbytes + x.grad.storage.nbytes


def test_packed_values_go_node_by_node_during_backward() -> None:
    counts = []
    x = tensor([0.1], requires_grad=True)

    def unpack(p: Packed) -> Tensor:
        counts.append(len(Packed.living))
        return tensor(p.bits)

    with saved_tensors_hooks(Packed, unpack):
        y = x.exp().exp().exp().exp()
    y.backward()
    assert counts == [4, 3, 2, 1]
    assert not Packed.living


def test_retained_graph_keeps_its_packed_values() -> None:
    x = tensor([0.1], requires_grad=True)
    with hooks():
        y = x.exp().exp()
    y.backward(retain_graph=True)
    assert len(Packed.living) == 2
    y.backward()
    assert not Packed.living


def test_never_used_branch_goes_with_its_last_name() -> None:
    x = tensor([0.1, 0.2], requires_grad=True)
    with hooks():
        used, unused = x.exp(), (x * x).exp()
    used.sum().backward()
    assert len(Packed.living) == 3
    del unused
    assert not Packed.living


def test_exception_in_forward_frees_what_was_recorded(sim: MemorySpace) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    with pytest.raises(ValueError, match="cannot multiply matrices"), hooks():
        net(x).reshape(1, 1) @ x
    assert not Packed.living
    assert sim.allocated_bytes == held


@pytest.mark.parametrize("retain", [False, True])
def test_exception_in_backward_frees_what_was_recorded(sim: MemorySpace, retain: bool) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    with hooks():
        a = x * x
        with pytest.raises(ZeroDivisionError):
            failing(a.exp()).exp().sum().backward(retain_graph=retain)
    del a
    assert not Packed.living
    assert sim.allocated_bytes == held
    assert x.grad is None


def failing(x: Tensor) -> Tensor:
    class Fails(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ZeroDivisionError

    y: Tensor = Fails.apply(x)
    return y


def test_exception_in_pack_frees_what_was_recorded(sim: MemorySpace) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    budget = 3

    def pack(t: Tensor) -> Packed:
        nonlocal budget
        budget -= 1
        if budget < 0:
            raise OSError("disk full")
        return Packed(t)

    with pytest.raises(OSError, match="disk full"), saved_tensors_hooks(pack, lambda p: tensor(p.bits)):
        net(x)
    assert not Packed.living
    assert sim.allocated_bytes == held


def test_refused_inplace_use_frees_what_was_recorded(sim: MemorySpace) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    a = x * 1
    y = a * a
    a.add_(1.0)
    with pytest.raises(InplaceError):
        y.sum().backward()
    del a, y
    assert sim.allocated_bytes == held


def test_double_backward_frees_everything(sim: MemorySpace) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    with hooks():
        y = (x * x).tanh().sum()
        (first,) = grad(y, x, create_graph=True)
    first.sum().backward()
    x.grad = None
    del y, first
    assert not Packed.living
    assert sim.allocated_bytes == held


def test_detached_loss_does_not_keep_its_graph(sim: MemorySpace) -> None:
    x = device_leaf()
    held = sim.allocated_bytes
    history = []
    for _ in range(3):
        y = net(x)
        with no_grad():
            history.extend([y.detach(), y.reshape(1)])
    del y
    assert sim.allocated_bytes == held + 3 * 8


def test_training_steps_leave_nothing_behind(sim: MemorySpace) -> None:
    generator = np.random.default_rng(0)
    layers = nn.Linear(6, 8, generator=generator), nn.GELU(), nn.Linear(8, 2, generator=generator)
    model = nn.Sequential(*layers).to("sim:0")
    inputs = tensor(generator.normal(size=(3, 6)), "float32", device="sim:0")
    levels = []
    for _ in range(3):
        loss = (model(inputs) ** 2).sum()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
        del loss
        levels.append(sim.allocated_bytes)
    assert levels == [levels[0]] * 3
    assert levels[0] == sum(p.nbytes for p in model.parameters()) + inputs.nbytes


DEEPER_THAN_PYTHON, DEEPER_THAN_C = 2_000, 12_000
"""Links that would exceed the limit of recursion, and links whose finalizers would exceed the stack."""


@pytest.mark.parametrize("link", ["operation", "view", "saved output", "packed"])
def test_deep_chain_is_dropped_and_differentiated_without_deep_recursion(link: str) -> None:
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "operation": lambda y: y + 1.0,
        "view": lambda y: y[...],
        "saved output": lambda y: y.relu(),
        "packed": lambda y: y.relu(),
    }
    x = tensor([1.0], requires_grad=True)

    def chain(length: int) -> Tensor:
        y = x
        for _ in range(length):
            y = steps[link](y)
        return y

    with saved_tensors_hooks(lambda t: [t], lambda p: p[0]) if link == "packed" else nullcontext():
        y = chain(DEEPER_THAN_PYTHON)
        y.backward()
        assert x.grad.item() == 1.0
        node = weakref.ref(x.edge.node)
        y = chain(DEEPER_THAN_C)
        del y
    assert node() is None
