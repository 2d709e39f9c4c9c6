"""Runs one variant in a fresh process and reads back what it measured."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gradients import largest_relative_difference
from benchmarks.variants import Variant

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(RuntimeError):
    """A training process failed; the message ends with what it wrote to its standard error."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one variant did.

    Args:
        variant: what ran.
        activation_bytes: peak resident memory above the floor, in bytes; the floor has model, gradients and optimizer.
        step_seconds: median over all steps but the first, in seconds.
        final_loss: loss of the last step.
        gradients_sha256: digest of all gradients of the first step.
        gradient_difference: largest relative difference of one parameter's gradient from the first variant's.
        details: everything the process reported.
    """

    variant: Variant
    activation_bytes: int
    step_seconds: float
    final_loss: float
    gradients_sha256: str
    gradient_difference: float
    details: dict[str, Any]


def measure(
    variant: Variant,
    *,
    steps: int,
    quick: bool,
    gradients: Path,
    reference: Path,
    on_step: Callable[[float], object],
) -> Measurement:
    """Run the variant and return its measurement.

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
    command = [sys.executable, "-m", "benchmarks.worker"]
    command += ["--framework", variant.framework, "--policy", variant.policy]
    command += ["--steps", str(steps), "--gradients", str(gradients)]
    command += ["--quick"] if quick else []
    details: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=variant.environment(), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                details = json.loads(line)
                if "step" in details:
                    on_step(details["loss"])
            status = process.wait()
        finally:
            process.kill()
        if status != 0 or "peak_bytes" not in details:
            errors.seek(0)
            raise WorkerError(f"{variant.framework}, {variant}: exit status {status}\n{errors.read()[-4000:]}")
    return Measurement(
        variant=variant,
        activation_bytes=details["peak_bytes"] - details["floor_bytes"],
        step_seconds=median(details["step_seconds"][1:]),
        final_loss=details["final_loss"],
        gradients_sha256=details["gradients_sha256"],
        gradient_difference=largest_relative_difference(gradients, reference),
        details=details,
    )
