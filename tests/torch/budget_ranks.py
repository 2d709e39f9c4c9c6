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
from tests.engine.slow_disk import SlowBudget

Report = dict[str, Any]

WIDTH, ROWS, LAYERS, STEPS = 64, 256, 6, 18


def model() -> nn.Module:
    """Return a model whose activations save what they are given, the same on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Tanh()) for _ in range(LAYERS)]
    return DistributedDataParallel(nn.Sequential(*layers))


def trained(
    around: Callable[[], AbstractContextManager[Any]], on_step: Callable[[int], None], net: nn.Module | None = None
) -> str:
    """Train, and return what tells the bits of all gradients and of the parameters in the end."""
    found = hashlib.blake2b(digest_size=8)
    net = net or model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(STEPS):
        with around():
            loss = net(torch.randn(ROWS, WIDTH, generator=generator)).square().mean()
        loss.backward()
        del loss
        on_step(step)
        for parameter in net.parameters():
            found.update(parameter.grad.numpy().tobytes())
        optimizer.step()
        optimizer.zero_grad()
    for parameter in net.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def under(budget: ts.Budget, net: nn.Module | None = None, on_step: Callable[[], None] = lambda: None) -> Report:
    """Train under a budget, and report the plan of each step and the bits."""
    stash = ts.stash(budget, framework="torch", min_bytes=4096)
    held: Any = stash._session._tracker
    digests, peaks = [], []

    def after(_: int) -> None:
        current = held._chooser._control.current
        digests.append(None if current is None else current.candidate.plan.digest)
        peaks.append(held.peak / int(budget.size or 1))
        on_step()

    bits = trained(lambda: stash, after, net)
    plan = stash.plan()
    return {
        "bits": bits,
        "digests": digests,
        "digest": plan.digest,
        "status": plan.status,
        "ranks": plan.ranks,
        "native": plan.native,
        "summary": plan.summary,
        "spilled": sum(row.nbytes for row in plan.rows if row.tier == "disk_spill"),
        "held": peaks,
    }


def holding(budget: ts.Budget, first: int, last: int) -> Report:
    """Train with a rank that holds on to what the layers return, in some of the steps."""
    net, outputs, steps = model(), [], iter(range(STEPS + 1))
    now = next(steps)
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Tanh)):
            module.register_forward_hook(lambda _, __, output: outputs.append(output) if first <= now < last else None)

    def on_step() -> None:
        nonlocal now
        now = next(steps)
        outputs.clear()

    return under(budget, net, on_step)


def main(rank: int, world: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(path, world))
    report = {"plain": trained(nullcontext, lambda _: None), "declined": under(ts.Budget("1GiB"))}
    size = int(0.6 * report["declined"]["native"])
    report["all tiers"] = under(ts.Budget(size))
    report["slow disk"] = under(SlowBudget(size, allow="keep+recompute+disk_spill", times=10 if rank else 1))
    # One rank holds more than was planned, after the plans were compared.
    report["replan"] = holding(ts.Budget(size, allow="keep+disk_spill"), *((10, 15) if rank else (0, 0)))
    alone = under(ts.Budget(size)) if rank else {"bits": trained(nullcontext, lambda _: None)}
    print(json.dumps({**report, "only one": alone}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
