"""Two processes with a device each, whose gradients are averaged: each prints a JSON line for each model and way.

Started by the tests as ``python -m tests.device.data_parallel_worker FOLDER``.
"""

import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which takes longest of all to load, and both need it
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import tensorstash as ts
from tensorstash.policies.plan import HookPolicy
from tests.device.models import MODELS, made
from tests.device.simulated import NAME, simulated

SIZE = 2
STEPS = 3


class ByWayOfTheHost(dist.ProcessGroup):
    """Collectives of a device that gloo does not know: copies go to the host, through gloo, and back.

    Args:
        store: where the processes find each other.
        rank: which of them this is.
        size: how many there are.
        timeout: how long they wait for each other.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.host = dist.ProcessGroupGloo(dist.PrefixStore("host", store), rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name)
        return "by_way_of_the_host"

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:
        return self._through(tensors, lambda copies: self.host.allreduce(copies, options))

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Any:
        return self._through(tensors, lambda copies: self.host.broadcast(copies, options))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None) -> Any:
        copies = [[output.cpu() for output in some] for some in outputs]
        self.host.allgather(copies, [tensor.cpu() for tensor in inputs]).wait()
        for some, found in zip(outputs, copies, strict=True):
            torch._foreach_copy_(some, found)
        return done(outputs)

    def barrier(self, options: Any = None) -> Any:
        return self.host.barrier()

    def _through(self, tensors: list[Tensor], collective: Callable[[list[Tensor]], Any]) -> Any:
        copies = [tensor.cpu() for tensor in tensors]
        collective(copies).wait()
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)
        return done(tensors)


def done(result: Any) -> Any:
    """Return work that is over."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


def trained(name: str, stash: ts.Stash | None, rank: int) -> str:
    """Return a digest of the parameters after some steps, each on data of its own."""
    model, x = made(name, f"{NAME}:{rank}")
    parallel = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        torch.manual_seed(SIZE * step + rank)
        batch = MODELS[name][1]().to(x.device)
        with stash or nullcontext():
            loss = parallel(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def work(rank: int, folder: Path) -> None:
    """Train each model without a policy and with each, and print what came out."""
    device = simulated()
    dist.Backend.register_backend("by_way_of_the_host", ByWayOfTheHost, devices=[NAME])
    backends = f"cpu:gloo,{NAME}:by_way_of_the_host"
    dist.init_process_group(backends, store=dist.FileStore(str(folder / "store"), SIZE), rank=rank, world_size=SIZE)
    torch.accelerator.set_device_index(rank)
    device.link(bandwidth=1e8)
    device.delays(0.0005, seed=rank)
    exact: Mapping[str, HookPolicy | None] = {
        "plain": None,
        "offloaded": ts.CpuOffload(),
        "spilled": ts.DiskSpill(folder),
    }
    inexact = {"quantized": ts.Quantize(bits=8), "quantized and offloaded": ts.Quantize(bits=8) | ts.CpuOffload()}
    for name, ways in {"language": exact, "images": {**exact, **inexact}}.items():
        for way, policy in ways.items():
            one = None if policy is None else ts.stash(policy, framework="torch", min_bytes=0)
            found = trained(name, one, rank)
            moved = one.stats().stashed.tensors if one else 0
            waits = dict(one.stats().waits) if one else {}
            report = {"model": name, "way": way, "parameters": found, "moved": moved, "waits": waits}
            os.write(1, f"{json.dumps(report)}\n".encode())  # in one call: the other process writes there, too
    dist.destroy_process_group()


def main(folder: Path) -> None:
    """Run both, which share what is loaded but no device: there is none before they begin."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank, folder)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
