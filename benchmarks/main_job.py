"""Train under no policy and under each policy, in processes that take turns, and print one table and a verdict.

    python -m benchmarks main_job
    python -m benchmarks main_job --quick --framework torch --policy "quantize:bits=4 | disk_spill" --plot bars.png

A GPT learns the text of Python's documentation in PyTorch, a residual network scikit-learn's digits in PaddlePaddle.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import advice, distance, policy_line
from benchmarks.models import Model, training
from tensorstash.cli import comparison
from tensorstash.cli.comparison import POLICIES, Training, Variant
from tensorstash.cli.memory import RESETS
from tensorstash.cli.turns import Job, counted

LIMIT = "16 MiB"
"""Bytes under way in each direction; the default suits larger models, whose activations are many times as large."""

GPT = Model(framework="torch", network="gpt", batch=16, rate=3e-3, depth=12, width=192, heads=6, context=128)
RESNET = Model(framework="paddle", network="resnet", batch=48, rate=0.05, optimizer="momentum", depth=16, width=16)
MODELS = {"torch": GPT, "paddle": RESNET}
"""About 300 and 210 MiB of activations, in so many layers that one tensor is a fiftieth of them at most."""

QUICK = {
    "torch": replace(GPT, depth=2, width=64, heads=4, context=64),
    "paddle": replace(RESNET, batch=16, depth=2, width=8, scale=2),
}

TITLES = {"torch": "GPT, PyTorch", "paddle": "ResNet, PaddlePaddle"}


def measure(framework: str, compared: Sequence[Variant], *, rounds: int, quick: bool) -> Training:
    """Train every variant, no policy first, and return what was measured; ``rounds`` steps of each count."""
    model = (QUICK if quick else MODELS)[framework]
    with tempfile.TemporaryDirectory() as folder:
        files = {variant: Path(folder, f"{number}.npz") for number, variant in enumerate(compared)}

        def job(variant: Variant, half_bytes: int) -> Job:
            return training.job(
                f"{framework}, {variant}",
                replace(model, recompute=variant.is_checkpointed),
                variant.untimed + rounds,
                variant.line(half_bytes),
                None if variant.is_advised else os.environ,
                limits={"in_flight": LIMIT, "ahead": LIMIT},
                saved=str(files[variant]),
            )

        measured = comparison.compare(compared, job, rounds, counted(comparison.steps_of(compared, rounds)))
        base = measured[compared[0]]
        for variant, found in measured.items():
            is_equal = found["gradients_sha256"] == base["gradients_sha256"]
            with np.load(files[variant]) as ours, np.load(files[compared[0]]) as theirs:
                difference = 0.0 if is_equal else max(distance(ours[name], theirs[name]) for name in theirs)
            found["gradient_difference"] = difference
            found["gradients"] = "bitwise equal" if is_equal else f"differ by {difference:.1e}"
    return Training(TITLES[framework], measured)


def legend(settings: Mapping[str, str]) -> str:
    """Return what has to be known to read the table; ``settings`` are what the advised environment has beyond ours."""
    lines = [comparison.LEGEND, f"Policies work behind the computation with {LIMIT} under way in each direction."]
    if not RESETS:
        lines.append("This system cannot reset the peak: memory is what exceeds the peak of everything before.")
    if settings:
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        lines.append(
            f"All rows but one run as `python -m tensorstash` starts a program, here with {shown}.\n"
            f"Without it, the C library keeps most freed activations, and what a policy frees does not show:\n"
            f'"allocator as it is" is no policy without it.'
        )
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=sorted(MODELS), help="only this one; repeatable")
    parser.add_argument("--policy", action="append", type=policy_line, help="only this line; repeatable")
    parser.add_argument("--quick", action="store_true", help="small sizes and few steps")
    parser.add_argument("--rounds", type=int, metavar="N", help="steps of each that count, 1 or more (5)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw memory and time as bars, such as bars.png")


def main(options: argparse.Namespace, report: Report) -> None:
    frameworks = options.framework or list(MODELS)
    report.legend = legend(advice())
    compared = comparison.variants(options.policy or POLICIES, advice=advice())
    rounds = max(1, options.rounds or (2 if options.quick else 5))
    trainings = [measure(name, compared, rounds=rounds, quick=options.quick) for name in frameworks]
    report.conditions = f"{machine('torch', 'paddlepaddle')}; {rounds} rounds."
    ratios = ("memory_ratio", "time_ratio", "cpu_ratio")
    for each in trainings:
        report.measured.setdefault("trainings", {})[each.title] = [
            {"variant": str(variant), **dict(zip(ratios, each.ratios(variant), strict=True)), **found}
            for variant, found in each.measured.items()
        ]
    report.begin({head: ">" if number % 2 else "" for number, head in enumerate(comparison.heads(trainings))})
    for row in comparison.rows(trainings):
        report.row(row)
    report.verdict = comparison.verdict(trainings)
    if options.plot:
        comparison.plot(options.plot, trainings)
        report.verdict += f" The same as bars: {options.plot}"
