"""How much of the copies of CpuOffload a device hides beside its computation, from the log of the simulated device.

    OMP_NUM_THREADS=1 python -m benchmarks torch_hidden_copies
    python -m benchmarks torch_hidden_copies --share 0.7 --width 256 --batch 64 --rounds 1

The link is as slow as makes the copies to the host take a share of the forward's computation; backward takes about
twice as long as forward. No policy, ``save_on_cpu`` with page-locked memory and ours take turns, step by step. A step's
ratio is the median of those between steps of one turn; hidden is which share of the time of copies there was
computation, too. The simulated device computes on the processor: what copies cost there is in the steps as well.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

import tensorstash as ts
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import seconds
from benchmarks.harness.torch_accelerator import WAYS, Accelerator, Copies, accelerator_named

Scope = Callable[[], AbstractContextManager[Any]]

NONE, HOST, OURS = "none", "save_on_cpu pinned", "cpu_offload"
HEADS = ("share", "link GB/s", "method", "step ms", "of none", "out ms", "hidden", "back ms", "hidden of it")
HEADS += ("hidden ms", "sooner than save_on_cpu ms")


class Bench:
    """Blocks of a transformer's feed-forward, which compute much and save little."""

    def __init__(self, options: argparse.Namespace, accelerator: Accelerator) -> None:
        torch.manual_seed(0)
        width = options.width
        blocks = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(options.depth)
        ]
        self.accelerator = accelerator
        self.model = nn.Sequential(*blocks).to(accelerator.device)
        self.batch = torch.randn(options.batch, width).to(accelerator.device)

    def forward(self, scope: Scope) -> Any:
        with scope():
            return self.model(self.batch).square().mean()

    def step(self, scope: Scope) -> None:
        self.forward(scope).backward()
        self.accelerator.synchronize()

    def timed(self, scope: Scope) -> float:
        self.model.zero_grad(set_to_none=False)
        self.accelerator.synchronize()
        return seconds(partial(self.step, scope))

    def forward_seconds(self) -> float:
        """Return how long a forward without hooks takes, the shortest of three."""
        return min(seconds(lambda: (self.forward(nullcontext), self.accelerator.synchronize())) for _ in range(3))

    def logged(self, scope: Scope, steps: int) -> Copies:
        """Return the copies of some steps, for one."""
        found = self.accelerator.copies(lambda: [self.step(scope) for _ in range(steps)])
        return {way: {name: value / steps for name, value in each.items()} for way, each in found.items()}


def cells(share: float, bandwidth: float, name: str, times: dict[str, list[float]], copies: Copies) -> list[str]:
    """Return the cells of a row.

    Args:
        share: of the forward's computation that copies out take.
        bandwidth: of the link, in bytes per second.
        name: of the method.
        times: seconds of each step by method.
        copies: of a step.
    """
    spent = median(times[name])
    of_none = median(one / other for one, other in zip(times[name], times[NONE], strict=True))
    row = [f"{share:g}", f"{bandwidth / 1e9:.2f}", name, f"{1e3 * spent:.0f}", f"{of_none:.3f}"]
    for way in WAYS:
        total = copies[way]["seconds"]
        row += [f"{1e3 * total:.0f}", f"{copies[way]['beside'] / total:.3f}"] if total else ["", ""]
    if name != OURS:
        return [*row, "", ""]
    sooner = median(other - one for one, other in zip(times[OURS], times[HOST], strict=True))
    return [*row, f"{1e3 * sum(copies[way]['beside'] for way in WAYS):.0f}", f"{1e3 * sooner:.0f}"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--share", action="append", type=float, help="of the forward's computation: copies out")
    sizes = {"width": 1024, "batch": 512, "depth": 2, "rounds": 5}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)


def main(options: argparse.Namespace, report: Report) -> int:
    accelerator = accelerator_named("sim")
    bench = Bench(options, accelerator)
    limits = ts.Limits(in_flight="64MiB", ahead="64MiB")
    session = ts.stash(ts.CpuOffload(), framework="torch", limits=limits)
    methods: dict[str, Scope] = {
        NONE: nullcontext,
        HOST: lambda: torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="sim"),
        OURS: lambda: session,
    }
    for _ in range(2):
        bench.timed(nullcontext)
    nbytes = bench.logged(methods[OURS], 1)["DtoH"]["nbytes"]
    threads = f"{torch.get_num_threads()} compute thread{'s' * (torch.get_num_threads() > 1)}"
    report.conditions = f"simulated device, {threads}, {nbytes / 2**20:.1f} MiB each way, {machine(['torch'])}"
    report.begin(*HEADS, left=("method",))
    report.measured |= {"rows": []}
    for share in options.share or (0.3, 0.5, 0.7):
        bandwidth = nbytes / (share * bench.forward_seconds())
        accelerator.log.link(bandwidth=bandwidth)
        bench.timed(methods[OURS])
        times: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(options.rounds):
            for name, scope in methods.items():
                times[name].append(bench.timed(scope))
        for name, scope in methods.items():
            copies = bench.logged(scope, 1 if name == HOST else 2)
            report.measured["rows"].append({"share": share, "method": name, "seconds": times[name], "copies": copies})
            report.row(*cells(share, bandwidth, name, times, copies))
    return 0
