"""Two processes, which import all together; prints, as JSON, what each reports of each way to parallelize."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
import torch._dynamo  # as the first optimizer would in each
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tensorstash as ts
from tensorstash.backends.torch.backend import TorchBackend
from tests.frameworks.copying import CopyingPair

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def fsdp1(model: nn.Sequential) -> nn.Module:
    options = {
        "auto_wrap_policy": ModuleWrapPolicy({Block, nn.LayerNorm}),
        "mixed_precision": MixedPrecision(torch.bfloat16),
    }
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True, **options)


def fsdp2(model: nn.Sequential, whole: dict[str, Any], **options: Any) -> nn.Module:
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **whole)


def tensor_parallel(model: nn.Sequential) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


KEEPING = {"reshard_after_forward": False}
KINDS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "ddp_gradient_views": partial(DistributedDataParallel, gradient_as_bucket_view=True, static_graph=True),
    "fsdp1": fsdp1,
    "fsdp2": partial(fsdp2, whole={}),
    "fsdp2_keeping": partial(fsdp2, whole=KEEPING, **KEEPING),
    "fsdp2_bf16": partial(fsdp2, whole={}, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "tensor_parallel": tensor_parallel,
}


def gradients(parallelize: Any, around: Any, policy: str = "", is_wrapped_before: bool = False) -> Iterator[bytes]:
    """Train two steps and yield the bits of every gradient and of every parameter."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    handle = ts.wrap(model, policy, min_bytes=0) if is_wrapped_before else None
    model = parallelize(model)
    handle = ts.wrap(model, policy, min_bytes=0) if policy and handle is None else handle
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        with around():
            loss = model(torch.randn(6, WIDTH) * 1).float().square().sum()
        loss.backward()
        yield from (bits(parameter.grad) for parameter in model.parameters())
        optimizer.step()
        yield from map(bits, model.parameters())
    if handle is not None:
        stats = handle.stats()
        assert stats.stashed.tensors > 0
        assert list(stats.blocks) == (["checkpointed"] if "checkpoint" in policy else []), stats
        handle.remove()


@contextmanager
def casting(stash: Any) -> Iterator[None]:
    """Enter a stash, and autocast within."""
    with stash, torch.autocast("cpu", torch.bfloat16):
        yield


def bits(tensor: torch.Tensor | None) -> bytes:
    if tensor is None:
        return b""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().numpy().tobytes()


def report(kind: str) -> dict[str, object]:
    parallelize = KINDS[kind]
    plain = list(gradients(parallelize, nullcontext))
    cast = list(gradients(parallelize, lambda: casting(nullcontext())))
    pair = CopyingPair(TorchBackend())
    stash = ts.stash(ts.Compress(min_ratio=1), framework="torch", min_bytes=0)
    again = ts.stash(ts.Recompute(), framework="torch", min_bytes=1)
    runs = {
        "plain": (plain, nullcontext, ""),
        "copied": (plain, pair.hooks, ""),
        "stashed": (plain, lambda: stash, ""),
        "wrapped": (plain, nullcontext, "compress:min_ratio=1"),
        "checkpointed": (plain, nullcontext, "checkpoint | compress:min_ratio=1"),
        "checkpointed before": (plain, nullcontext, "checkpoint | compress:min_ratio=1", True),
        "recomputed": (plain, lambda: again, ""),
        "recomputed casts": (cast, lambda: casting(again), ""),
    }
    return {
        "gradients": len(plain),
        "different": [name for name, (same, *run) in runs.items() if list(gradients(parallelize, *run)) != same],
        "stashed": stash.stats().stashed.tensors,
        "recomputed": {rule: done.loads for rule, done in again.stats().recomputed.items()},
        "refused": list(again.stats().refused),
        "copied": sorted(set(pair.copied)),
        "reasons": sorted(pair.kept),
    }


def main(rank: int, store_file: str) -> dict[str, dict[str, object]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    try:
        return {kind: report(kind) for kind in KINDS}
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("fork")) as ranks:
        print(json.dumps(list(ranks.map(main, range(2), sys.argv[1:] * 2))))
