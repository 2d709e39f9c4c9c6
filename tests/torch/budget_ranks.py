"""One rank of a two-process run under a budget; prints a line of JSON.

Started by the tests as ``python budget_ranks.py RANK WORLD_SIZE STORE_FILE``.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tensorstash as ts

WIDTH, ROWS, LAYERS, STEPS = 64, 256, 6, 16


def model() -> nn.Module:
    """Return a model whose activations save what they are given, the same on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Tanh()) for _ in range(LAYERS)]
    return DistributedDataParallel(nn.Sequential(*layers))


def trained(around: Callable[[], AbstractContextManager[Any]], on_step: Callable[[], None]) -> str:
    """Train, and return what tells the bits of all gradients and of the parameters in the end."""
    found = hashlib.blake2b(digest_size=8)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(STEPS):
        with around():
            loss = net(torch.randn(ROWS, WIDTH, generator=generator)).square().mean()
        loss.backward()
        del loss
        on_step()
        for parameter in net.parameters():
            found.update(parameter.grad.numpy().tobytes())
        optimizer.step()
        optimizer.zero_grad()
    for parameter in net.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def under(budget: ts.Budget, on_step: Callable[[Any], None] = lambda _: None) -> dict[str, Any]:
    """Train under a budget, and report the plan of each step and the bits."""
    stash = ts.stash(budget, framework="torch", min_bytes=4096)
    held: Any = stash._session._tracker
    digests, peaks = [], []

    def after() -> None:
        on_step(stash)
        control = held._chooser._control
        current = control.current
        digests.append(None if current is None else current.candidate.plan.digest)
        peaks.append(held.peak)

    bits = trained(lambda: stash, after)
    plan = stash.plan()
    return {
        "bits": bits,
        "digests": digests,
        "digest": plan.digest,
        "status": plan.status,
        "ranks": plan.ranks,
        "tiers": sorted({row.tier for row in plan.rows}),
        "native": plan.native,
        "over": max(peaks[1:]) / int(budget.size or 1),
    }


def main(rank: int, world: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(path, world))
    plain = trained(nullcontext, lambda: None)
    native = under(ts.Budget("1GiB"))
    size = int(0.6 * native["native"])
    report = {"rank": rank, "plain": plain, "declined": native, "budget": under(ts.Budget(size))}
    print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
