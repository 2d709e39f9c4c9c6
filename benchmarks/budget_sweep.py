"""Budgets from a fifth to all of the bytes that a step saves, beside fixed policies.

    python -m benchmarks budget_sweep
    python -m benchmarks budget_sweep --workload torch_gpt --part 0.5 --policy "recompute | disk_spill" --rounds 9

Each policy runs at each budget. Every line has a fresh process; all take turns, step by step. Exits with 1 if gradients
are not bitwise those without hooks.
"""

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import policy_line
from benchmarks.harness.turns import run
from benchmarks.models import Model, tiny, training
from benchmarks.models.training import NONE
from benchmarks.policies import CHECKPOINT, Measured, Variant, add_sizes, measure, ratios
from tensorstash.host.allocator import advised_environment

GPT = Model(framework="torch", network="gpt", batch=16, rate=1e-3, depth=10, width=192, heads=6, context=256)
WORKLOADS = {
    "torch_gpt": GPT,
    "torch_resnet": Model(framework="torch", network="resnet", batch=48, rate=1e-3, depth=40, width=16),
    "paddle_gpt": replace(GPT, framework="paddle", depth=8, width=128, heads=4),
}
FIXED = ("keep", "recompute", "disk_spill", "recompute | disk_spill", CHECKPOINT)
FITS = 1.02

COLUMNS = columns("""
    workload | policy | part:.2f | budget MiB:.1f | resident MiB:.1f | of none:.3f | of implied:.3f | held:.3f |
    step:.3f | CPU:.3f | of best:.3f | best that fits | gradients
""")

LEGEND = f"""\
"part" is the budget relative to the bytes that a forward saves. "resident" is the peak of a step above the floor.
"implied" is the peak without hooks, less the saved bytes above the budget. "held" is the engine's own peak relative to
the budget. "step" and "CPU" are relative to no hooks. "of best" is the step relative to the fastest policy without a
budget whose peak is at most {FITS} times the implied one. Ratios are medians of those between steps of the same round;
the first steps do not count."""


def rows(name: str, measured: Measured, parts: Mapping[Variant, float], saved: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table, in the order of what was measured; no hooks come first."""
    none, *_ = measured
    peaks = {variant: found["activation_bytes"] for variant, found in measured.items()}
    for variant, found in measured.items():
        budget = implied = held = best = None
        if variant in parts:
            budget = saved * parts[variant]
            implied = peaks[none] - saved + budget
            held = (found["stats"] or {}).get("peak_held", 0) / budget or None
            fitting = [each for each in measured if each not in parts and peaks[each] <= FITS * implied]
            best = min(fitting, key=lambda each: ratios(measured, each)[1], default=None)
        memory, *times = ratios(measured, variant)
        yield (
            *(name, variant.partition("@")[0], parts.get(variant), budget and budget / 2**20),
            *(peaks[variant] / 2**20, memory, implied and peaks[variant] / implied, held, *times),
            *(best and ratios(measured, variant, best)[1], best or ""),
            "bitwise" if found["gradients_sha256"] == measured[none]["gradients_sha256"] else "differ",
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--part", action="append", type=float, help="of the saved bytes, only this one; repeatable")
    parser.add_argument("--policy", action="append", type=policy_line, help="with a budget (recompute | disk_spill)")
    parser.add_argument("--fixed", action="append", help="without a budget; repeatable")
    add_sizes(parser, "48 MiB")


def main(options: argparse.Namespace, report: Report) -> bool:
    report.begin(COLUMNS, LEGEND, f"{options.rounds} rounds", f"{options.limit} under way")
    os.environ.update(advised_environment(os.environ))  # for all variants, no hooks among them
    differ = False
    for name in options.workload or WORKLOADS:
        model = tiny(WORKLOADS[name]) if options.quick else WORKLOADS[name]
        saved = run(training.job(name, model, 1, "disk_spill", scope={"min_bytes": 0}))["stats"]["stashed"]["nbytes"]
        parts = {
            Variant(f"{line}@{round(saved * part)}B"): part
            for line in options.policy or ("recompute | disk_spill",)
            for part in sorted(options.part or [tenths / 10 for tenths in range(2, 11)])
        }
        variants = [Variant(NONE), *map(Variant, options.fixed or FIXED), *parts]
        measured = measure(name, model, variants, options, compared=range(options.rounds + 1))
        report.measured.setdefault("sweeps", {})[name] = measured
        for row in rows(name, measured, parts, saved):
            report.row(row)
            differ |= row[-1] == "differ"
    return differ
