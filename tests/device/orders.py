"""Programs that need one order between a copy and the computation each, and sessions that lack it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from delays import Dice
from order_faults import BackendFault
from torch import Tensor

import tensorstash as ts
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.engine.session import Session
from tensorstash.engine.transfers import Transfers
from tensorstash.host.pinned import PinnedMemory
from tensorstash.policies.plan import HookPolicy
from tests.device.chosen import KIND

COUNT = 1000
"""Elements of a tensor."""

Scope = Callable[[], AbstractContextManager[Any]]
Program = Callable[[Dice, Scope], list[bytes]]


class Late(torch.autograd.Function):
    """Saves what the device has not written yet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


def full(value: float) -> Tensor:
    """Return a result of the current stream."""
    return torch.full((COUNT,), value, device=KIND) * 1.0


def bits(*tensors: Tensor | None) -> list[bytes]:
    return [tensor.cpu().numpy().tobytes() for tensor in tensors if tensor is not None]


def square(dice: Dice, scope: Scope) -> list[bytes]:
    """Save a copy, which is the last thing that the device was given."""
    scale = torch.full((COUNT,), 3.0).to(KIND).requires_grad_()
    with scope():
        out = Late.apply(scale * 2.0)
    out.sum().backward()
    return bits(scale.grad)


def trained(dice: Dice, scope: Scope) -> list[bytes]:
    """Two steps of three layers whose results are freed early."""
    leaf = torch.full((COUNT,), 0.5).to(KIND).requires_grad_()
    for _ in range(2):
        with scope():
            x = leaf
            for _ in range(4):
                x = (x * x).tanh()
        x.sum().backward()
    return bits(leaf.grad)


def deep(dice: Dice, scope: Scope) -> list[bytes]:
    """A step of more layers than may be brought back ahead."""
    leaf = torch.full((COUNT,), 0.5).to(KIND).requires_grad_()
    with scope():
        x = leaf
        for _ in range(12):
            x = (x * 1.1).tanh()
    torch.accelerator.current_stream().synchronize()
    x.sum().backward()
    return bits(leaf.grad)


def aside(dice: Dice, scope: Scope) -> list[bytes]:
    """Save on one stream what belongs to another, which goes on without waiting."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device=KIND)
    x = full(dice.choice([2.0, 3.0]))
    side.wait_event(main.record_event())
    with side:
        leaf = torch.ones(COUNT, device=KIND).requires_grad_()
        with scope():
            y = leaf * x
            del x
            y = y.tanh()  # and what nobody else holds any more leaves
    for _ in range(dice.choice([1, 3, 6])):
        full(7.0)
    with side:
        y.sum().backward()
        return bits(leaf.grad)


def session(policy: HookPolicy, limits: ts.Limits, fault: type | None = None) -> Session[Any]:
    """Return a session, with a fault of its transfers or its backend or none."""
    is_of_backend = fault is not None and issubclass(fault, BackendFault)
    backend = TorchBackend()
    if is_of_backend:
        stream = cache(lambda device: backend.streams.side_stream(device, "out"))
        fault.put(backend, stream)
    one: Session[Any] = Session(policy, backend, min_bytes=0, limits=limits)
    if fault is not None and not is_of_backend:
        pinned = PinnedMemory(backend.streams.locked_pages, limits.pinned_bytes or 2**40)
        one.transfers = one.places.transfers = fault(
            backend.streams, pinned, out_bytes=limits.in_flight_bytes, back_bytes=limits.ahead_bytes
        )
        assert isinstance(one.transfers, Transfers)
    return one
