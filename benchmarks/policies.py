"""Whole training steps on the CPU under each policy: peak memory, time and gradients, relative to no policy.

    python -m benchmarks policies                          # a GPT in PyTorch, a residual network in PaddlePaddle
    python -m benchmarks policies --quick --workload gpt --policy "quantize:bits=4 | disk_spill" --plot points.png
    python -m benchmarks policies --workload gpt --dtype bfloat16 --threads 2 --beside ../before
    python -m benchmarks policies --workload blocks --policy "checkpoint | disk_spill" --policy "auto@400MiB"

A GPT learns the text of Python's documentation, a residual network scikit-learn's digits. Every policy has a fresh
process; all take turns, step by step. ``--beside`` measures each policy with the package of another checkout, too.
Exits with 1 if gradients under a policy that loses nothing are not bitwise those without one.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tensorstash as ts
from benchmarks.harness.meter import RESETS
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import distance, policy_line
from benchmarks.harness.turns import ROOT, Job, Turns
from benchmarks.models import Model, tiny, training
from benchmarks.models.training import NONE
from tensorstash.host.allocator import advised_environment

GPT = Model(framework="torch", network="gpt", batch=16, rate=3e-3, depth=12, width=192, heads=6, context=128)
RESNET = Model(framework="paddle", network="resnet", batch=48, rate=0.05, optimizer="momentum", depth=16, width=16)
WORKLOADS = {
    "gpt": GPT,
    "paddle_resnet": RESNET,
    "blocks": replace(GPT, batch=8, depth=24, width=256, heads=4, context=512),
    "resnet": replace(RESNET, framework="torch", rate=1e-3, optimizer="adamw"),
    "paddle_gpt": replace(GPT, framework="paddle"),
}
DEFAULT = ("gpt", "paddle_resnet")

CHECKPOINT, LAUNCHED = "checkpoint per block", "none, launched"
POLICIES = ("keep", "recompute", "disk_spill", "recompute | disk_spill", "quantize:bits=8", "quantize:bits=4")
POLICIES += ("quantize:bits=4 | disk_spill", "cast:dtype=bfloat16")

COLUMNS = columns("""
    workload | policy | peak MiB:.0f | memory:.2f | step ms:.0f | time:.2f | CPU:.2f | gradients
""")

LEGEND = """\
"peak" is that of a step above the floor (libraries, model, gradients, optimizer state). "memory", "time" and "CPU"
(processor time) are relative to no policy in the process that a user has today; of times, the median of the ratios
between steps of the same round. First steps do not count. Policies, and "none, launched", run as
`python -m tensorstash` starts a program. "checkpoint per block" is the framework's own recomputation."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One process: a policy, or what its name says, with the package of a checkout."""

    name: str = NONE
    package: Path = ROOT

    def __str__(self) -> str:
        return self.name if self.package == ROOT else f"{self.name} ({self.package.name})"

    @property
    def policy(self) -> str:
        return NONE if self.name in (CHECKPOINT, LAUNCHED) else self.name.partition("@")[0].strip()

    @property
    def budget(self) -> dict[str, str]:
        size = self.name.partition("@")[2].strip()
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
    model = replace(model, threads=options.threads)
    model = tiny(model) if options.quick else model
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(options.threads)} if options.threads else {})}
    launched = advised_environment(environment)
    scope: dict[str, Any] = {"in_flight": options.limit, "ahead": options.limit}
    scope |= {"min_bytes": 0} if options.quick else {}
    with tempfile.TemporaryDirectory() as folder:
        files = {variant: Path(folder, f"{number}.npz") for number, variant in enumerate(variants)}

        def job(variant: Variant) -> Job:
            return training.job(
                f"{name}, {variant}",
                replace(model, recompute=variant.name == CHECKPOINT),
                variant.untimed + options.rounds,
                variant.policy,
                scope=scope | variant.budget,
                compared=list(compared),
                saved=str(files[variant]),
                environment=environment if variant.name in (NONE, CHECKPOINT) else launched,
                package=variant.package,
            )

        with Turns({variant: job(variant) for variant in variants}) as turns:
            for variant in variants:
                turns.alone(variant, variant.untimed)
            turns.rounds(options.rounds)
            measured = turns.finish()
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
        yield name, str(variant), nbytes / 2**20, memory, step_ms, time, cpu, exact


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points such that no other takes less memory in less time, the largest first."""
    best = [
        name
        for name, (memory, time) in points.items()
        if not any(m <= memory and t <= time and (m, t) != (memory, time) for m, t in points.values())
    ]
    return sorted(best, key=lambda name: -points[name][0])


def plot(path: Path, workloads: Mapping[str, Measured]) -> None:
    """Draw memory against time, a point for each policy; the ending of the path says the format.

    Raises:
        ImportError: matplotlib is missing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 * len(workloads), 6), layout="constrained")
    for axes, (name, measured) in zip(
        figure.subplots(1, len(workloads), squeeze=False)[0], workloads.items(), strict=True
    ):
        for variant in measured:
            memory, time, _ = ratios(measured, variant)
            axes.plot(memory, time, "o")
            axes.annotate(str(variant), (memory, time), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set(title=name, xlabel="memory, relative to no policy", ylabel="time of a step, relative to no policy")
    figure.savefig(path, dpi=120)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="only this one; repeatable")
    parser.add_argument(
        "--policy", action="append", type=policy_line, help="only this line, or line@budget; repeatable"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of PyTorch's workloads")
    parser.add_argument("--beside", type=Path, help="another checkout, whose package is measured too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw memory against time, such as points.png")
    add_sizes(parser, "16 MiB")


def add_sizes(parser: argparse.ArgumentParser, limit: str) -> None:
    """Add what :func:`measure` reads."""
    parser.add_argument("--threads", type=int, help="for computing; by default all")
    parser.add_argument("--quick", action="store_true", help="sizes that show nothing but that it runs")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps of each that count (5)")
    parser.add_argument("--limit", default=limit, help=f"bytes in flight, and ahead, in each direction ({limit})")


def main(options: argparse.Namespace, report: Report) -> bool:
    report.conditions += f"; {options.rounds} rounds, {options.limit} under way"
    report.legend = LEGEND if RESETS else f"{LEGEND}\nThis system cannot reset the peak: it is that of all before."
    report.begin(COLUMNS)
    policies = options.policy or POLICIES
    variants = [Variant(), Variant(LAUNCHED), Variant(CHECKPOINT), *map(Variant, policies)]
    variants += [Variant(policy, options.beside.resolve()) for policy in policies if options.beside]
    workloads: dict[str, Measured] = {}
    said = []
    for name in options.workload or DEFAULT:
        model = replace(WORKLOADS[name], dtype=options.dtype)
        found = workloads[name] = measure(name, model, variants, options)
        report.measured.setdefault("workloads", {})[name] = [
            asdict(variant) | {"package": str(variant.package), **each} for variant, each in found.items()
        ]
        for row in rows(name, found):
            report.row(row)
        points = {str(variant): ratios(found, variant)[:2] for variant in found}
        best = (f"{each} ({points[each][0]:.2f} · {points[each][1]:.2f})" for each in frontier(points))
        said.append(f"{name}: {', '.join(best)}")
    report.verdict = f"On the frontier of memory against time (memory · time): {'; '.join(said)}."
    if options.plot:
        plot(options.plot, workloads)
    return any(v.is_lossless and each["difference"] for found in workloads.values() for v, each in found.items())
