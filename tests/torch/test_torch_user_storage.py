"""What belongs to the user stays the user's: storages can be resized, freed and refilled; modes see no work of ours."""

from __future__ import annotations

import sys

import pytest
import torch
from memory_programs import LIMITS, POLICIES, Moment
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tensorstash as ts
from tests.processes import forked
from tests.samples import pairwise


@pytest.fixture(params=["default", "synchronous"])
def limits(request):
    return LIMITS[request.param]


class Model(nn.Module):
    """Saves an input, a buffer, its parameters, and activations that it returns for the user to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x):
        hidden = self.norm(self.linear(x) * x) * self.scale
        out = hidden.tanh()
        return out, hidden


def trained(policy, limits, drains):
    """Run a step and return every tensor of the user that it can have saved, by name."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    with ts.stash(policy, framework="torch", min_bytes=0, limits=limits) as session:
        out, hidden = model(x)
        loss = out.square().sum()
    if drains:
        session.drain()
    loss.backward()
    found = {"input": x, "out": out, "hidden": hidden, "loss": loss}
    return found | dict(model.named_parameters()) | dict(model.named_buffers())


def resize(tensor):
    before = tensor.clone()
    tensor.resize_(tensor.numel() * 3)
    assert torch.equal(tensor[: before.numel()], before.flatten())


def concatenate(tensor):
    piece = tensor.clone().reshape(-1)
    torch.cat([piece, piece, piece], out=tensor)
    assert torch.equal(tensor, piece.repeat(3))


def free_and_refill(tensor):
    storage, before = tensor.untyped_storage(), tensor.clone()
    nbytes = storage.nbytes()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(nbytes)
    tensor.copy_(before)
    assert torch.equal(tensor, before)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("change", [resize, concatenate, free_and_refill])
@pytest.mark.parametrize("drains", [False, True], ids=["", "drained"])
@pytest.mark.parametrize("policy", ["keep", "compress | disk_spill"])
def test_storages_of_the_user_are_resizable_after_backward(policy, drains, change, limits):
    failed = []
    for name, tensor in trained(policy, limits, drains).items():
        try:
            assert tensor.untyped_storage().resizable()
            change(tensor.detach())
        except (RuntimeError, AssertionError) as error:
            failed.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
    assert failed == []


def free_and_go_on(policy, in_flight, how):
    weight = torch.randn(512, 1024, requires_grad=True)
    with ts.stash(policy, framework="torch", min_bytes=0, limits=ts.Limits(in_flight=in_flight)) as session:
        held = weight.detach() * 1.0
        out = weight * held
        held.untyped_storage().resize_(0)
        if how == "dropped":
            del held
        for _ in range(8):
            out = out.tanh()  # the engine looks around
        if how == "drained":
            session.drain()
    session.drain()


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("policy", "in_flight", "how"),
    pairwise(["memory", "compress", "disk"], [0, "256 MiB"], ["dropped", "held", "drained"]),
)
def test_memory_that_its_owner_has_freed_is_never_read(policy, in_flight, how, tmp_path):
    """In a child, so that a crash is one of this case alone."""
    assert forked(lambda: free_and_go_on(POLICIES[policy](str(tmp_path)), in_flight, how)) == 0


class Operations(TorchDispatchMode):
    """Logs what reaches the kernels."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.log.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Logs what is called from Python, attributes too."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("policy", "mode", "where", "limits"),
    pairwise(["keep", "compress | disk_spill"], [Operations, Functions], ["inside", "outside"], LIMITS),
    indirect=["limits"],
)
def test_modes_of_the_user_see_nothing_of_ours(policy, mode, where, limits):
    def run(stash):
        torch.manual_seed(0)
        model, x = Model(), torch.randn(4, 8)
        log: list[str] = []
        # Under hooks PyTorch itself leaves out an operation that it does for outputs which are saved.
        scope = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor) if stash is None else stash
        first, second = (scope, mode(log)) if where == "inside" else (mode(log), scope)
        with first, second:
            hidden = x * 1.0
            for _ in range(3):
                hidden = model(hidden)[0]
            loss = hidden.square().sum()
            loss.backward(retain_graph=True)  # of what has not left yet
        if stash is not None:
            stash.drain()
        log.append("then")
        with mode(log):
            torch.autograd.grad(loss, [model.linear.weight], retain_graph=True)
            (slope,) = torch.autograd.grad(loss, [model.linear.weight], create_graph=True)
            slope.sum().backward()
        return log

    plain = run(None)
    assert run(None) == plain
    assert plain.index("then") > 5
    stash = ts.stash(policy, framework="torch", min_bytes=0, limits=limits)
    assert run(stash) == plain
    assert policy == "keep" or stash.stats().stashed.tensors > 0


def test_memory_that_is_freed_in_forward_and_filled_again_in_backward(as_without_hooks):
    """Megatron's pattern: an output is freed after its use, and computed again before backward needs it."""

    def program(moment: Moment):
        weight, leaf = torch.randn(6, 20, requires_grad=True), torch.randn(6, 20, requires_grad=True)
        with moment():
            freed = leaf * 1.0
            out = weight * freed
            storage, elements = freed.untyped_storage(), freed.untyped_storage().clone()

            def fill(_):
                storage.resize_(elements.nbytes())
                storage.copy_(elements, False)

            moment.between()
            storage.resize_(0)
            out.register_hook(fill)
            out = out.tanh().tanh()
            moment.between()
        out.sum().backward()
        return [weight.grad, leaf.grad, freed]

    as_without_hooks(program)
