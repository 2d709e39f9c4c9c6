"""Whole training steps on the CPU under each policy: peak memory, time and gradients, relative to no policy.

    python -m benchmarks policies                          # a GPT in PyTorch, a residual network in PaddlePaddle
    python -m benchmarks policies --quick --workload gpt --policy "quantize:bits=4 | disk_spill" --plot points.png
    python -m benchmarks policies --workload blocks --policy "checkpoint | disk_spill" --policy "auto@400MiB"

A GPT learns the text of Python's documentation, a residual network scikit-learn's digits. Every policy has a fresh
process; all take turns, step by step. Exits with 1 if gradients under a policy that loses nothing are not bitwise
those without one.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tensorstash as ts
from benchmarks.harness.meter import RESETS
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import distance, policy_line
from benchmarks.harness.turns import Job, take_turns
from benchmarks.models import Model, tiny, training
from benchmarks.models.training import NONE
from tensorstash.host.allocator import advised_environment

GPT = Model(framework="torch", network="gpt", batch=16, rate=3e-3, depth=12, width=192, heads=6, context=128)
RESNET = Model(framework="paddle", network="resnet", batch=48, rate=0.05, optimizer="Momentum", depth=16, width=16)
WORKLOADS = {
    "gpt": GPT,
    "paddle_resnet": RESNET,
    "blocks": replace(GPT, batch=8, depth=24, width=256, heads=4, context=512),
    "resnet": replace(RESNET, framework="torch", rate=1e-3, optimizer="AdamW"),
    "paddle_gpt": replace(GPT, framework="paddle"),
}
DEFAULT = ("gpt", "paddle_resnet")

CHECKPOINT, LAUNCHED = "checkpoint per block", "none, launched"
POLICIES = ("keep", "checkpoint", "recompute", "disk_spill", "recompute | disk_spill", "quantize:bits=8")
POLICIES += ("quantize:bits=4", "quantize:bits=4 | disk_spill", "cast:dtype=bfloat16")

COLUMNS = columns("""
    workload | policy | peak MiB:.0f | memory:.2f | step ms:.0f | time:.2f | CPU:.2f | gradients
""")

LEGEND = """\
"peak" is that of a step above the floor (libraries, model, gradients, optimizer state). "memory", "time" and "CPU"
(processor time) are relative to no policy in the process that a user has today; of times, the median of the ratios
between steps of the same round. First steps do not count. Policies, and "none, launched", run as
`python -m tensorstash` starts a program. "checkpoint per block" is the framework's own recomputation."""


class Variant(str):
    """One process, by name: a policy, perhaps with ``@`` and a budget, or what the name says."""

    __slots__ = ()

    @property
    def policy(self) -> str:
        return NONE if self in (CHECKPOINT, LAUNCHED) else self.partition("@")[0].strip()

    @property
    def budget(self) -> dict[str, str]:
        size = self.partition("@")[2].strip()
        return {"budget": size} if size else {}

    @property
    def untimed(self) -> int:
        """Steps that do not count: a budget settles within three."""
        return 3 if self.budget else 1

    @property
    def is_lossless(self) -> bool:
        plans = ts.parse(self.policy).alternatives() if self.policy != NONE else ()
        return all(plan.is_lossless for plan in plans)


Measured = Mapping[Variant, Mapping[str, Any]]


def measure(
    name: str, model: Model, variants: Sequence[Variant], options: argparse.Namespace, compared: Sequence[int] = (0,)
) -> dict[Variant, dict[str, Any]]:
    """Train a model under all variants, no policy first, and return the report of each process.

    Raises:
        WorkerError: a process failed.
    """
    model = tiny(model) if options.quick else model
    launched = advised_environment(os.environ)
    scope: dict[str, Any] = {"in_flight": options.limit, "ahead": options.limit}
    scope |= {"min_bytes": 0} if options.quick else {}
    with tempfile.TemporaryDirectory() as folder:
        files = {variant: Path(folder, f"{number}.npz") for number, variant in enumerate(variants)}

        def job(variant: Variant) -> Job:
            return training.job(
                f"{name}, {variant}",
                replace(model, recompute=variant == CHECKPOINT),
                variant.untimed + options.rounds,
                variant.policy,
                scope=scope | variant.budget,
                compared=list(compared),
                saved=str(files[variant]),
                environment=None if variant in (NONE, CHECKPOINT) else launched,
            )

        alone = {variant: variant.untimed for variant in variants}
        measured = take_turns({variant: job(variant) for variant in variants}, alone, options.rounds)
        base = measured[variants[0]]
        for variant, found in measured.items():
            with np.load(files[variant]) as ours, np.load(files[variants[0]]) as theirs:
                is_equal = found["gradients_sha256"] == base["gradients_sha256"]
                found["difference"] = 0.0 if is_equal else max(distance(ours[each], theirs[each]) for each in theirs)
    return measured


def ratios(measured: Measured, variant: Variant, other: Variant | None = None) -> tuple[float, float, float]:
    """Return memory, time and processor time relative to another variant, or to no policy."""
    other = other or next(iter(measured))
    ours, theirs = measured[variant], measured[other]
    times = (
        median(
            our / their for our, their in zip(ours[name][variant.untimed :], theirs[name][other.untimed :], strict=True)
        )
        for name in ("step_s", "cpu_s")
    )
    return ours["activation_bytes"] / max(theirs["activation_bytes"], 1), *times


def rows(name: str, measured: Measured) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a workload, the largest peak first."""
    for variant, found in sorted(measured.items(), key=lambda each: -each[1]["activation_bytes"]):
        memory, time, cpu = ratios(measured, variant)
        nbytes, step_ms = found["activation_bytes"], 1e3 * median(found["step_s"][variant.untimed :])
        exact = f"differ by {found['difference']:.1e}" if found["difference"] else "bitwise equal"
        yield name, variant, nbytes / 2**20, memory, step_ms, time, cpu, exact


def plot(path: Path, workloads: Mapping[str, Measured]) -> None:
    """Draw memory against time, a point for each policy; the ending of the path says the format.

    Raises:
        ImportError: matplotlib is missing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 * len(workloads), 6), layout="constrained")
    parts = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axes, (name, measured) in zip(parts, workloads.items(), strict=True):
        for variant in measured:
            memory, time, _ = ratios(measured, variant)
            axes.plot(memory, time, "o")
            axes.annotate(variant, (memory, time), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set(title=name, xlabel="memory, relative to no policy", ylabel="time of a step, relative to no policy")
    figure.savefig(path, dpi=120)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="only this one; repeatable")
    parser.add_argument("--policy", action="append", type=policy_line, help="only this LINE or LINE@BUDGET; repeatable")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw memory against time, such as points.png")
    add_sizes(parser, "16 MiB")


def add_sizes(parser: argparse.ArgumentParser, limit: str) -> None:
    """Add what :func:`measure` reads."""
    parser.add_argument("--quick", action="store_true", help="sizes that show nothing but that it runs")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps of each that count (5)")
    parser.add_argument("--limit", default=limit, help=f"bytes in flight, and ahead, in each direction ({limit})")


def main(options: argparse.Namespace, report: Report) -> bool:
    legend = LEGEND if RESETS else f"{LEGEND}\nThis system cannot reset the peak: it is that of all before."
    report.begin(COLUMNS, legend, f"{options.rounds} rounds", f"{options.limit} under way")
    policies = options.policy or POLICIES
    variants = [Variant(NONE), Variant(LAUNCHED), Variant(CHECKPOINT), *map(Variant, policies)]
    workloads: dict[str, Measured] = {}
    for name in options.workload or DEFAULT:
        found = workloads[name] = measure(name, WORKLOADS[name], variants, options)
        report.measured.setdefault("workloads", {})[name] = found
        for row in rows(name, found):
            report.row(row)
    if options.plot:
        plot(options.plot, workloads)
    return any(v.is_lossless and each["difference"] for found in workloads.values() for v, each in found.items())
