"""Weights that FSDP2 frees after forward, saved through aliases that do not say whose they are."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from lazy import Lazy
from memory_programs import LIMITS, POLICIES
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tensorstash as ts
from tests.samples import pairwise

fsdp, tensor = Lazy("torch.distributed.fsdp"), Lazy("torch.distributed.tensor")
WIDTH = 16


@pytest.fixture(scope="module", autouse=True)
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Aliased(nn.Module):
    """A block that reads its weights as themselves, detached, by ``.data`` or through another tensor of their memory.

    Args:
        alias: what makes of a weight what is read besides it.
    """

    def __init__(self, alias) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.alias = alias

    def forward(self, x):
        up, down = self.alias(self.up.weight), self.alias(self.down.weight)
        hidden = nn.functional.gelu(self.up(x) + nn.functional.linear(x, up))
        # Elementwise, too: the alias itself is saved, and not a view of it.
        return x + self.down(hidden) + nn.functional.linear(hidden * down.sum(0), down) + (x * 1.0).T.mm(x)[0] * up[0]


ALIASES = {
    "itself": lambda weight: weight,
    "detach": lambda weight: weight.detach(),
    "data": lambda weight: weight.data,
    "data of detach": lambda weight: weight.detach().data,
    "set_": lambda weight: torch.empty(0).set_(weight.detach()),
}


def sharded(alias):
    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(Aliased(alias), Aliased(alias))
    for block in model:
        fsdp.fully_shard(block, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


class Local(nn.Module):
    """Reads what is local of a weight that is also split by columns, as kernels of one's own do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        up, down = self.up.weight.to_local(), self.down.weight.to_local()
        hidden = nn.functional.gelu(nn.functional.linear(x, up)) * up.sum(1)
        return x + nn.functional.linear(hidden, down) * down.detach()[:, 0]


def sharded_on_two_axes():
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "columns"))
    model = nn.Sequential(Local(), Local())
    for block in model:
        for linear in (block.up, block.down):
            weight = tensor.distribute_tensor(linear.weight.detach(), mesh["columns"], [tensor.Shard(0)])
            linear.weight = nn.Parameter(weight)
        fsdp.fully_shard(block, mesh=mesh["data"])
    return fsdp.fully_shard(model, mesh=mesh["data"])


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


MAKERS = {name: partial(sharded, alias) for name, alias in ALIASES.items()} | {"to_local": sharded_on_two_axes}


def trained(make, around):
    """Train three steps; return the gradients and parameters of each."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(6, WIDTH)
        with around():
            loss = model(x * 1.0).square().mean()
        loss.backward()
        found += [local(parameter.grad).clone() for parameter in model.parameters()]
        optimizer.step()
        found += [local(parameter).detach().clone() for parameter in model.parameters()]
    return found


@pytest.mark.parametrize(
    ("make", "policy", "limits"), pairwise(MAKERS, ["memory", "compress | disk"], ["default", "synchronous"])
)
def test_a_model_trains_as_without_hooks_and_its_unsharded_weights_are_freed(
    make, policy, limits, tmp_path, same_bits, monkeypatch
):
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    make, freed, free = MAKERS[make], [], _fsdp_param.free_storage

    def recorded(tensor):
        free(tensor)
        freed.append(tensor.untyped_storage().size())

    plain = trained(make, nullcontext)
    monkeypatch.setattr(_fsdp_param, "free_storage", recorded)
    stash = ts.stash(POLICIES[policy](str(tmp_path)), framework="torch", min_bytes=0, limits=LIMITS[limits])
    assert same_bits(plain, trained(make, lambda: stash))
    assert stash.stats().stashed.tensors > 10
    assert freed.count(0) == len(freed) > 0


class Normed(nn.Module):
    """A block whose norms look the same; what the last one returns is saved inside, and by whoever gets it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        out = self.norm(self.inner(x))
        return out, (out * out).mean()


class Alternating(nn.Module):
    """Sharded blocks, and between them what is not sharded on its own."""

    def __init__(self, outside: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Normed(), Normed()])
        self.outside = nn.ModuleList([copy.deepcopy(outside), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x, weight):
        total = 0.0
        for block, outside in zip(self.blocks, self.outside, strict=True):
            x, penalty = block(x)
            x, total = outside(x), total + weight * penalty
        return x.square().mean() + total


@pytest.mark.parametrize(
    ("outside", "line", "weight"),
    pairwise([nn.BatchNorm1d(WIDTH), nn.GELU(), nn.Tanh()], ["recompute", "recompute | disk_spill"], [0.0, 1.0]),
)
def test_what_is_made_of_weights_that_are_freed_by_then_is_not_made_again(outside, weight, line, same_bits):
    def train(wrapped):
        torch.manual_seed(0)
        model = Alternating(outside)
        for block in model.blocks:
            fsdp.fully_shard(block)
        fsdp.fully_shard(model)
        handle = ts.wrap(model, line, min_bytes=0) if wrapped else None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.randn(8, WIDTH), weight).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.full_tensor() for parameter in model.parameters()], handle

    plain, _ = train(False)
    found, handle = train(True)
    assert same_bits(plain, found)
    assert handle.stats().recomputed["layer_norm"].tensors
