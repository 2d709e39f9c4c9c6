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
    return torch.full((COUNT,), value, device="sim") * 1.0


def bits(*tensors: Tensor | None) -> list[bytes]:
    return [tensor.cpu().numpy().tobytes() for tensor in tensors if tensor is not None]


def square(dice: Dice, scope: Scope) -> list[bytes]:
    """Save a copy, which is the last thing that the device was given."""
    scale = torch.full((COUNT,), 3.0).to("sim").requires_grad_()
    with scope():
        out = Late.apply(scale * 2.0)
    out.sum().backward()
    return bits(scale.grad)


def views(dice: Dice, scope: Scope) -> list[bytes]:
    """Save what is not one run of memory and not written yet."""
    leaf = torch.full((20, 50), 3.0).to("sim").requires_grad_()
    with scope():
        x = (leaf * 2.0)[:, ::2]
        out = x * x
        del x
        out = out.tanh()  # and what nobody else holds any more leaves
    out.sum().backward()
    return bits(leaf.grad)


def trained(dice: Dice, scope: Scope) -> list[bytes]:
    """Two steps of three layers whose results are freed early."""
    leaf = torch.full((COUNT,), 0.5).to("sim").requires_grad_()
    for _ in range(2):
        with scope():
            x = leaf
            for _ in range(4):
                x = (x * x).tanh()
        x.sum().backward()
    return bits(leaf.grad)


def deep(dice: Dice, scope: Scope) -> list[bytes]:
    """A step of more layers than may be brought back ahead."""
    leaf = torch.full((COUNT,), 0.5).to("sim").requires_grad_()
    with scope():
        x = leaf
        for _ in range(12):
            x = (x * 1.1).tanh()
    torch.accelerator.current_stream().synchronize()
    x.sum().backward()
    return bits(leaf.grad)


def aside(dice: Dice, scope: Scope) -> list[bytes]:
    """Save on one stream what belongs to another, which goes on without waiting."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    x = full(dice.choice([2.0, 3.0]))
    side.wait_event(main.record_event())
    with side:
        leaf = torch.ones(COUNT, device="sim").requires_grad_()
        with scope():
            y = leaf * x
            del x
            y = y.tanh()  # and what nobody else holds any more leaves
    for _ in range(dice.choice([1, 3, 6])):
        full(7.0)
    with side:
        y.sum().backward()
        return bits(leaf.grad)


def stays_aside(dice: Dice, scope: Scope) -> list[bytes]:
    """Ask on one stream for what has stayed on the device and belongs to another, which goes on without waiting."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    x, nodes = torch.ones(COUNT, device="sim").requires_grad_(), []
    with scope():
        for number in range(4):
            x = x * full(2.0 + number)
            nodes.append(x.grad_fn)
        last = x.tanh()  # whose graph tells who reads what
    side.wait_event(main.record_event())
    with side:
        got = [node._saved_other * 1.0 for node in nodes]
    del x, nodes, last
    with side:
        return bits(*got)


def lent_aside(dice: Dice, scope: Scope) -> list[bytes]:
    """Ask on one stream for what has not left another, which uses the memory as soon as it is let go."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    with scope() as session:
        x = full(dice.choice([2.0, 3.0]))
        handles = [session.pack(x)]
        del x
    side.wait_event(main.record_event())
    with side:
        got = session.unpack(handles.pop()) * 1.0
    for _ in range(dice.choice([1, 3, 6])):
        full(7.0)
    with side:
        return bits(got)


def prefetched(dice: Dice, scope: Scope) -> list[bytes]:
    """Ask on one stream for what another has saved and goes on from, which it waits for only as far as that."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    with side, scope() as session:
        handle = session.pack(full(dice.choice([2.0, 3.0])))
        saved = side.record_event()
        more = [session.pack(full(value)) for value in range(dice.choice([2, 4, 6]))]
    main.wait_event(saved)
    got = bits(session.unpack(handle))
    del more
    return got


def dropped(dice: Dice, scope: Scope) -> list[bytes]:
    """Drop tensors that were brought back ahead, and use memory at once."""
    with scope() as session:
        handles = [session.pack(full(value)) for value in range(dice.choice([8, 10, 12]))]
    torch.accelerator.current_stream().synchronize()
    got = []
    for _ in range(3):  # each makes room for one more
        got += bits(session.unpack(handles.pop()))
    handles.clear()
    fresh = [full(value) for value in range(dice.choice([2, 4, 8]))]
    return got + bits(*fresh)


def handed_over(dice: Dice, scope: Scope) -> list[bytes]:
    """Ask on another stream for what was brought back ahead for the first."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    with scope() as session:
        handles = [session.pack(full(value)) for value in range(12)]
    side.wait_event(main.record_event())
    got = []
    for _ in range(3):  # each makes room for one more
        got += bits(session.unpack(handles.pop()))
    with side:
        got += bits(session.unpack(handles.pop()) * 1.0)  # of those that were brought back ahead
        return got + bits(*(session.unpack(handle) for handle in reversed(handles)))


def in_turn(dice: Dice, scope: Scope) -> list[bytes]:
    """Save and ask on one stream after the other."""
    main, got = torch.accelerator.current_stream(), []
    for stream in (main, torch.Stream(device="sim")):
        with stream, scope() as session:
            handles = [session.pack(full(value)) for value in range(4)]
            got += bits(*(session.unpack(handle) for handle in reversed(handles)))
    return got


def session(policy: HookPolicy, limits: ts.Limits, fault: type | None = None) -> Session[Any]:
    """Return a session, with a fault of its transfers or its backend or none."""
    is_of_backend = fault is not None and issubclass(fault, BackendFault)
    backend = TorchBackend()
    if is_of_backend:
        stream = cache(lambda device: backend.streams.side_stream(device, "out"))
        fault.put(backend, lambda device: stream(device).block())
    one: Session[Any] = Session(policy, backend, min_bytes=0, limits=limits)
    if fault is not None and not is_of_backend:
        pinned = PinnedMemory(backend.streams.locked_pages, limits.pinned_bytes or 2**40)
        one._transfers = one._places.transfers = fault(
            backend.streams, pinned, out_bytes=limits.in_flight_bytes, back_bytes=limits.ahead_bytes
        )
        assert isinstance(one._transfers, Transfers)
    return one
