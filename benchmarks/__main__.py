"""``python -m benchmarks``: train under no policy and under each policy, and print one table."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

import tensorstash as ts
from benchmarks.runner import Measurement, WorkerError, measure
from benchmarks.table import as_json, as_table, footer
from benchmarks.task import BUILDERS, STEPS
from benchmarks.variants import POLICIES, Variant, variants


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison that the command line asks for; progress goes to standard error, the table to output."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--framework", action="append", choices=sorted(BUILDERS), help="only this one; repeatable")
    parser.add_argument("--policy", action="append", type=_policy, metavar="LINE", help="only this policy; repeatable")
    parser.add_argument("--quick", action="store_true", help="small sizes and few steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--steps", type=_at_least_two, metavar="N", help="training steps of each run, 2 or more")
    options = parser.parse_args(arguments)

    runs = [
        (variant, options.steps or (3 if options.quick else STEPS[variant.framework]))
        for variant in variants(options.framework or list(BUILDERS), options.policy or list(POLICIES))
    ]
    try:
        measurements = run(runs, quick=options.quick)
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    print(as_table(measurements), footer(measurements), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps(as_json(measurements), indent=2))
    return 0


def run(runs: Sequence[tuple[Variant, int]], *, quick: bool) -> list[Measurement]:
    """Measure one variant after the other, with a progress bar over the steps of all.

    Args:
        runs: variants and their numbers of steps; the first of a framework is the one its others are compared with.
        quick: small sizes.

    Raises:
        WorkerError: a training failed.
    """
    measurements: list[Measurement] = []
    references: dict[str, Path] = {}
    refresh_s = 0.1 if sys.stderr.isatty() else 15.0
    total = sum(steps for _, steps in runs)
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="step", mininterval=refresh_s) as bar:
        for number, (variant, steps) in enumerate(runs):
            bar.set_description(f"{variant.framework}, {variant}", refresh=False)
            gradients = Path(folder, f"{number}.npz")
            reference = references.setdefault(variant.framework, gradients)
            measurements.append(
                measure(
                    variant,
                    steps=steps,
                    quick=quick,
                    gradients=gradients,
                    reference=reference,
                    on_step=lambda loss: (bar.set_postfix(loss=f"{loss:.3f}", refresh=False), bar.update()),
                )
            )
    return measurements


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


if __name__ == "__main__":
    sys.exit(main())
