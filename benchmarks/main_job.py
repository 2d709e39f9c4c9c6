"""Train under no policy and under each policy, each in a process of its own, and print one table.

    python -m benchmarks main_job
    python -m benchmarks main_job --quick --framework torch --policy "quantize:bits=4 | disk_spill"

A GPT learns the text of Python's documentation in PyTorch, a residual network scikit-learn's digits in PaddlePaddle.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

import tensorstash as ts
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import Job, run
from benchmarks.harness.training import NO_POLICY, largest_relative_difference
from benchmarks.models import Model
from tensorstash.cli.memory import RESETS
from tensorstash.host.allocator import advised_environment

POLICIES = (
    "keep",
    "cpu_offload",
    "compress",
    "disk_spill",
    "recompute",
    "recompute | disk_spill",
    "quantize:bits=8",
    "quantize:bits=4",
    "cast:dtype=bfloat16",
    "quantize:bits=4 | disk_spill",
    "compress | disk_spill",
)

BUDGET = "16 MiB"
"""Bytes under way in each direction; the default suits larger models, whose activations are many times as large."""

GPT = Model(framework="torch", network="gpt", batch=32, rate=3e-3, depth=6, width=192, heads=6, context=128)
RESNET = Model(framework="paddle", network="resnet", batch=112, rate=0.05, optimizer="momentum", depth=3, width=16)
MODELS = {"torch": GPT, "paddle": replace(RESNET, stages=2)}
"""About 300 and 155 MiB of activations."""

QUICK = {
    "torch": replace(GPT, batch=16, depth=2, width=64, heads=4, context=64),
    "paddle": replace(RESNET, stages=2, batch=16, depth=1, width=8, scale=2),
}

STEPS = {"torch": 10, "paddle": 8}
"""Training steps of a run, unless told otherwise; enough to see the loss fall, few enough for a table in minutes."""

HEADS = ("framework", "policy", "memory, MiB", "ratio", "step, ms", "ratio", "final loss", "first gradients")


@dataclass(frozen=True, slots=True)
class Variant:
    """One process to run.

    Args:
        framework: a key of :data:`MODELS`.
        policy: one line for ``tensorstash.parse``, or ``"none"``.
        advised: whether it runs in the environment that ``python -m tensorstash`` gives a program, or in ours.
    """

    framework: str
    policy: str
    advised: bool = True

    def __str__(self) -> str:
        return self.policy if self.advised else f"{self.policy}, allocator as it is"


Measurement = Mapping[str, Any]
"""What the process reported; with ``variant``, ``activation_bytes``, peak resident memory above the floor, which has
model, gradients and optimizer; ``step_seconds``, the median over all steps but the first; and ``gradient_difference``,
the largest relative difference of one parameter's gradient of the first step from the first variant's."""


def advice() -> dict[str, str]:
    """Return what the advised environment has that ours has not."""
    return {name: value for name, value in advised_environment(os.environ).items() if os.environ.get(name) != value}


def variants(framework: str, policies: Sequence[str]) -> list[Variant]:
    """Return the runs of a framework: no policy first, which the others are compared with, then each policy."""
    as_it_is = [Variant(framework, NO_POLICY, advised=False)] if advice() else []
    return [Variant(framework, NO_POLICY), *as_it_is, *(Variant(framework, policy) for policy in policies)]


def measure(
    variant: Variant,
    *,
    steps: int,
    quick: bool,
    gradients: Path,
    reference: Path,
    on_step: Callable[[float], object],
) -> Measurement:
    """Run the variant in a process of its own and return its measurement.

    Args:
        variant: what to run.
        steps: training steps, 2 or more.
        quick: small sizes.
        gradients: where the first step's gradients are written; an ``.npz`` file.
        reference: gradients to compare with; may be the same file.
        on_step: called with the loss after each step.

    Raises:
        WorkerError: the process failed.
    """
    arguments = {
        "model": asdict((QUICK if quick else MODELS)[variant.framework]),
        "steps": steps,
        "policy": variant.policy,
        "limits": {"in_flight": BUDGET, "ahead": BUDGET},
        "saved": str(gradients),
    }
    environment = advised_environment(os.environ) if variant.advised else dict(os.environ)
    job = Job(f"{variant.framework}, {variant}", "benchmarks.harness.training:train", arguments, environment)
    details = run(job, on_step)
    return {
        "variant": asdict(variant),
        "activation_bytes": details["peak_bytes"] - details["floor_bytes"],
        "step_seconds": median(details["step_s"][1:]),
        "gradient_difference": largest_relative_difference(gradients, reference),
        **details,
    }


def cells(variant: Variant, m: Measurement, baseline: Measurement) -> tuple[str, ...]:
    """Return a row of the table; ratios are to the first row of the same framework."""
    is_equal = m["gradients_sha256"] == baseline["gradients_sha256"]
    gradients = "bitwise equal" if is_equal else f"differ by {m['gradient_difference']:.1e}"
    return (
        variant.framework,
        str(variant),
        f"{m['activation_bytes'] / 2**20:.0f}",
        f"{m['activation_bytes'] / max(baseline['activation_bytes'], 1):.2f}",
        f"{m['step_seconds'] * 1e3:.0f}",
        f"{m['step_seconds'] / baseline['step_seconds']:.2f}",
        f"{m['final_loss']:.4f}",
        "the reference" if m is baseline else gradients,
    )


def legend(settings: Mapping[str, str]) -> str:
    """Return what has to be known to read the table.

    Args:
        settings: of the advised environment, where ours has not got them.
    """
    lines = [
        "memory: peak resident memory of a step above the floor (libraries, model, gradients, optimizer state); "
        "step: median of all but the first.",
    ]
    if not RESETS:
        lines.append("This system cannot reset the peak: memory is what exceeds the peak of everything before.")
    if settings:
        lines.append(
            f"All rows but one run as `python -m tensorstash` starts a program, here with "
            f"{', '.join(f'{name}={value}' for name, value in settings.items())}: without it, the C library keeps most "
            f"freed activations, and what a policy frees does not show. 'allocator as it is' is no policy without it: "
            f"compare with that row to see what the setting costs."
        )
    lines.append(f"Policies work behind the computation with {BUDGET} under way in each direction.")
    lines.append("On CPU tensors cpu_offload has nothing to do: it keeps them, and says so in its statistics.")
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--framework", action="append", choices=sorted(MODELS), help="only this one; repeatable")
    parser.add_argument("--policy", action="append", type=_policy, metavar="LINE", help="only this policy; repeatable")
    parser.add_argument("--quick", action="store_true", help="small sizes and few steps")
    parser.add_argument("--steps", type=_at_least_two, metavar="N", help="training steps of each run, 2 or more")


def main(options: argparse.Namespace, report: Report) -> int:
    frameworks = options.framework or list(MODELS)
    packages = {"torch": "torch", "paddle": "paddlepaddle"}
    report.conditions = f"{machine(map(packages.get, frameworks))}; scratch files in {tempfile.gettempdir()}."
    report.legend = legend(advice())
    report.begin(*HEADS, left=("framework", "policy", "first gradients"))
    measurements = report.measured["measurements"] = []
    runs = [variant for framework in frameworks for variant in variants(framework, options.policy or POLICIES)]
    steps = {name: options.steps or (3 if options.quick else STEPS[name]) for name in frameworks}
    total = sum(steps[variant.framework] for variant in runs)
    refresh_s = 0.1 if sys.stderr.isatty() else 15.0
    baselines: dict[str, tuple[Path, Measurement]] = {}
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="step", mininterval=refresh_s) as bar:

        def on_step(loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

        for number, variant in enumerate(runs):
            name = variant.framework
            bar.set_description(f"{name}, {variant}", refresh=False)
            gradients = Path(folder, f"{number}.npz")
            reference = baselines[name][0] if name in baselines else gradients
            sizes = {"steps": steps[name], "quick": options.quick}
            measured = measure(variant, gradients=gradients, reference=reference, on_step=on_step, **sizes)
            baselines.setdefault(name, (gradients, measured))
            measurements.append(measured)
            report.row(*cells(variant, measured, baselines[name][1]), told=False)  # the bar has the line
    return 0


def _policy(line: str) -> str:
    try:
        ts.parse(line)
    except ts.TensorStashError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return line


def _at_least_two(text: str) -> int:
    steps = int(text)
    if steps < 2:
        raise argparse.ArgumentTypeError(f"got {steps}, expected 2 or more: the first step is not timed")
    return steps
