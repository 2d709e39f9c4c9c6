"""How much of the copies of CpuOffload a device hides beside its computation, from the log of the simulated device.

    OMP_NUM_THREADS=1 python -m benchmarks torch_hidden_copies
    OMP_NUM_THREADS=1 python -m benchmarks torch_hidden_copies --memory 0 --width 1024 --batch 192
    python -m benchmarks torch_hidden_copies --share 0.7 --width 256 --batch 64 --rounds 1

The link is as slow as makes the copies to the host take a share of the forward's computation, and as fast as memory
with a share of 0; backward takes about twice as long as forward. No policy and ours, with its default limits, take
turns, step by step, now the one first and now the other; ``save_on_cpu`` with page-locked memory, which takes long,
takes part in every so many turns. A step's ratio is the median of those between steps of one turn, which the bar is
for, and beside it its standard error, from how far the turns differ. Hidden is which share of the time of copies there
was computation, too; waited is for how long the computation could not go on before a copy had ended. Nothing computes
yet when the first copy out could begin, and nothing any more beside the last copy back, so that few blocks hide less
than many.

An operation takes as long as the device's memory needs for what it reads and writes. The processor, which computes it,
needs less and then sleeps, as it does during copies: so the program runs ahead of the device, steps are as long as the
device makes them, and what else the machine does is hardly in them. With ``--memory 0`` operations take as long as the
processor needs; then the program's own work and that of the simulation are in the steps, too.
"""

import argparse
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

import tensorstash as ts
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import seconds
from benchmarks.harness.torch_accelerator import WAYS, Accelerator, Copies, accelerator_named

Scope = Callable[[], AbstractContextManager[Any]]

NONE, HOST, OURS = "none", "save_on_cpu pinned", "cpu_offload"
HEADS = (
    "share",
    "link GB/s",
    "method",
    "step ms",
    "of none",
    "standard error",
    "waited ms",
    "out ms",
    "hidden",
    "back ms",
    "hidden of it",
)
HEADS += ("hidden ms", "sooner than save_on_cpu ms", "bars")

MOST_OF_NONE, LEAST_HIDDEN = 1.03, 0.95
"""What is aimed at: a step of no policy's, and of the time of copies each way; and sooner by what is hidden."""


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
        self.model.zero_grad(set_to_none=True)
        self.accelerator.synchronize()
        return seconds(partial(self.step, scope))

    def forward_seconds(self) -> float:
        """Return how long a forward without hooks takes, the shortest of three."""
        return min(seconds(lambda: (self.forward(nullcontext), self.accelerator.synchronize())) for _ in range(3))

    def logged(self, scope: Scope) -> Copies:
        """Return the copies of a step."""
        return self.accelerator.copies(lambda: self.step(scope))


def cells(share: float, bandwidth: float, name: str, times: dict[str, dict[int, float]], copies: Copies) -> list[str]:
    """Return the cells of a row.

    Args:
        share: of the forward's computation that copies out take.
        bandwidth: of the link, in bytes per second.
        name: of the method.
        times: seconds of each step by method and turn.
        copies: of a step.
    """
    spent = median(times[name].values())
    ratios = [step / times[NONE][turn] for turn, step in times[name].items()]
    of_none = median(ratios)
    row = [f"{share:g}", f"{bandwidth / 1e9:.2f}" if bandwidth else "", name, f"{1e3 * spent:.0f}", f"{of_none:.3f}"]
    row += [f"{uncertainty(ratios):.3f}" if len(ratios) > 1 else "", f"{1e3 * copies['waited']['seconds']:.0f}"]
    for way in WAYS:
        total = copies[way]["seconds"]
        row += [f"{1e3 * total:.0f}", f"{copies[way]['beside'] / total:.3f}"] if total else ["", ""]
    if name != OURS:
        return [*row, "", "", ""]
    sooner = median(step - times[OURS][turn] for turn, step in times[HOST].items())
    hidden = sum(copies[way]["beside"] for way in WAYS)
    return [*row, f"{1e3 * hidden:.0f}", f"{1e3 * sooner:.0f}", bars(of_none, copies, sooner - hidden)]


def uncertainty(values: list[float]) -> float:
    """Return the standard error of a median of values that are spread like a normal distribution.

    Args:
        values: at least two.

    >>> round(uncertainty([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]), 2)
    0.14
    """
    first, _, third = quantiles(values)
    # 1.2533 of the mean's error; the quartiles are 1.349 standard deviations apart.
    return 1.2533 / 1.349 * (third - first) / math.sqrt(len(values))


def bars(of_none: float, copies: Copies, sooner: float) -> str:
    """Say which of the aims are missed, or that all are met.

    Args:
        of_none: a step of no policy's.
        copies: of a step.
        sooner: by how many seconds more than were hidden.

    >>> copies = {way: {"seconds": 2.0, "beside": 1.9} for way in WAYS}
    >>> bars(1.03, copies, 0.0), bars(1.031, copies, -0.1)
    ('met', 'missed: step, sooner')
    """
    hidden = {way: copies[way]["beside"] >= LEAST_HIDDEN * copies[way]["seconds"] for way in WAYS}
    is_met = {"step": of_none <= MOST_OF_NONE, "out": hidden["DtoH"], "back": hidden["HtoD"], "sooner": sooner >= 0}
    missed = [name for name, met in is_met.items() if not met]
    return f"missed: {', '.join(missed)}" if missed else "met"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--share", action="append", type=float, help="of the forward's computation: copies out")
    parser.add_argument("--memory", type=float, default=0.2, help="of the device, in GB/s; 0: as the processor")
    sizes = {"width": 512, "batch": 48, "depth": 6, "rounds": 24, "host-every": 6}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)


def main(options: argparse.Namespace, report: Report) -> int:
    accelerator = accelerator_named("sim")
    bench = Bench(options, accelerator)
    session = ts.stash(ts.CpuOffload(), framework="torch")
    methods: dict[str, Scope] = {
        NONE: nullcontext,
        HOST: lambda: torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="sim"),
        OURS: lambda: session,
    }
    on_processor = min(bench.timed(nullcontext) for _ in range(3))
    accelerator.log.memory(bandwidth=1e9 * options.memory)
    slower = bench.timed(nullcontext) / on_processor
    nbytes = bench.logged(methods[OURS])["DtoH"]["nbytes"]
    threads = f"{torch.get_num_threads()} compute thread{'s' * (torch.get_num_threads() > 1)}"
    memory = f"memory of {options.memory:g} GB/s, steps {slower:.1f} times" if options.memory else "steps 1.0 times"
    report.conditions = (
        f"simulated device, {memory} as long as the processor needs, {threads}, {nbytes / 2**20:.1f} MiB each way, "
        f"{machine(['torch'])}"
    )
    report.begin(*HEADS, left=("method",))
    report.measured |= {"rows": []}
    for share in options.share or (0.3, 0.5, 0.7):
        bandwidth = nbytes / (share * bench.forward_seconds()) if share else 0.0
        accelerator.log.link(bandwidth=bandwidth)
        bench.timed(methods[OURS])
        times: dict[str, dict[int, float]] = {name: {} for name in methods}
        for turn in range(options.rounds):
            order = [NONE, OURS][:: 1 if turn % 2 else -1] + [HOST] * (turn % options.host_every == 0)
            for name in order:
                times[name][turn] = bench.timed(methods[name])
        for name, scope in methods.items():
            copies = bench.logged(scope)
            spent = list(times[name].values())
            report.measured["rows"].append({"share": share, "method": name, "seconds": spent, "copies": copies})
            report.row(*cells(share, bandwidth, name, times, copies))
    return 0
