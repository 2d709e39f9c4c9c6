"""Budgets from a fifth to all of the bytes that a step saves, beside fixed policies, with this and another checkout.

    python -m benchmarks budget_sweep
    python -m benchmarks budget_sweep --workload torch_gpt --part 0.5 --policy "recompute | disk_spill" --rounds 9
    python -m benchmarks budget_sweep --policy "disk_spill; writers=2"
    python -m benchmarks budget_sweep --beside ../before --beside-policy "budget:size={budget}B"

Each policy runs at each budget. Where its line holds ``{budget}``, the bytes are put there; else they are the argument
``budget`` of ``stash``. Limits stand behind a semicolon. ``--beside`` runs other lines with the package of another
checkout. Every line has a fresh process; all take turns, step by step. Exits with 1 if gradients are not bitwise those
without hooks.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.report import Report, columns
from benchmarks.harness.turns import ROOT, Job, Turns, run
from benchmarks.models import Model, tiny, training
from benchmarks.models.training import NONE
from tensorstash.host.allocator import advised_environment

GPT = Model(framework="torch", network="gpt", batch=16, rate=1e-3, depth=10, width=192, heads=6, context=256)
WORKLOADS = {
    "torch_gpt": GPT,
    "torch_resnet": Model(framework="torch", network="resnet", batch=48, rate=1e-3, depth=40, width=16),
    "paddle_gpt": replace(GPT, framework="paddle", depth=8, width=128, heads=4),
}

PARTS: Sequence[float] = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CHECKPOINT = "checkpoint per block"
FIXED = ("keep", "recompute", "disk_spill", "recompute | disk_spill", CHECKPOINT)
FITS = 1.02

COLUMNS = columns("""
    workload | policy | checkout | part:.2f | budget MiB:.1f | resident MiB:.1f | of none:.3f | of implied:.3f |
    held:.3f | step:.3f | CPU:.3f | of best:.3f | best that fits | gradients
""")

LEGEND = f"""\
"part" is of the distinct bytes that a forward saves without hooks. "resident" is the peak of the process above the
floor (libraries, model, gradients, optimizer state). "implied" is the peak without hooks, less the saved bytes above
the budget. "held" is the engine's own peak relative to the budget, where it reports one. "step" and "CPU" are relative
to no hooks. "of best" is the step relative to the fastest policy without a budget whose peak is at most {FITS} times
the implied one. Ratios are medians of those between steps of the same round; the first steps do not count."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One process: a policy of one checkout, with a budget or without."""

    line: str = NONE
    part: float | None = None
    package: Path = ROOT

    def __str__(self) -> str:
        return self.line if self.part is None else f"{self.line} at {self.part:g}"

    @property
    def untimed(self) -> int:
        """Steps that do not count; a policy that tries plans takes 16."""
        return 16 if self.line.startswith("budget") else 1 if self.part is None else 3


def job(model: Model, variant: Variant, saved: int, options: argparse.Namespace) -> Job:
    """Return the process of a variant; ``saved`` are the bytes that a forward saves without hooks."""
    nbytes = round(saved * (variant.part or 0))
    policy, _, limits = variant.line.replace("{budget}", str(nbytes)).partition(";")
    scope: dict[str, Any] = {"in_flight": options.limit, "ahead": options.limit}
    settings = (each.partition("=") for each in limits.split())
    scope |= {name: int(value) if value.isdecimal() else value for name, _, value in settings}
    if variant.part is not None and "{budget}" not in variant.line:
        scope["budget"] = nbytes
    if options.tiny:
        scope["min_bytes"] = 0
    return training.job(
        f"{variant} of {variant.package}",
        replace(model, recompute=policy == CHECKPOINT),
        variant.untimed + options.rounds,
        NONE if policy == CHECKPOINT else policy.strip(),
        scope=scope,
        compared=list(range(options.rounds + 1)),
        environment=advised_environment(os.environ),
        package=variant.package,
    )


Measured = Mapping[Variant, Mapping[str, Any]]


def ratio(measured: Measured, ours: Variant, theirs: Variant, name: str = "step_s") -> float:
    """Return the median of the ratios between steps of the same round."""
    pairs = (measured[each][name][each.untimed :] for each in (ours, theirs))
    return median(our / their for our, their in zip(*pairs, strict=True))


def rows(name: str, measured: Measured, saved: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table, in the order of what was measured; no hooks come first."""
    none, *_ = measured
    peaks = {variant: found["activation_bytes"] for variant, found in measured.items()}
    for variant, found in measured.items():
        budget = implied = held = best = None
        if variant.part is not None:
            budget = saved * variant.part
            implied = peaks[none] - saved + budget
            held = (found["stats"] or {}).get("peak_held", 0) / budget or None
            fitting = [each for each in measured if each.part is None and peaks[each] <= FITS * implied]
            best = min(fitting, key=lambda each: ratio(measured, each, none), default=None)
        exact = found["gradients_sha256"] == measured[none]["gradients_sha256"]
        yield (
            *(name, variant.line, "this" if variant.package == ROOT else variant.package.name, variant.part),
            *(budget and budget / 2**20, peaks[variant] / 2**20, peaks[variant] / peaks[none]),
            *(implied and peaks[variant] / implied, held, ratio(measured, variant, none)),
            *(ratio(measured, variant, none, "cpu_s"), best and ratio(measured, variant, best)),
            *("" if best is None else str(best), "bitwise" if exact else "differ"),
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--part", action="append", type=float, help="of the saved bytes, only this one; repeatable")
    parser.add_argument("--policy", action="append", help="with a budget (recompute | disk_spill); repeatable")
    parser.add_argument("--fixed", action="append", help="without a budget; repeatable")
    parser.add_argument("--beside", type=Path, help="another checkout, whose package is measured too")
    parser.add_argument("--beside-policy", action="append", help="with a budget, in the other checkout; repeatable")
    parser.add_argument("--rounds", type=int, default=6, help="steps of each that count (6)")
    parser.add_argument("--limit", default="48 MiB", help="bytes in flight, and ahead, in each direction (48 MiB)")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")


def main(options: argparse.Namespace, report: Report) -> bool:
    report.conditions += f"; {options.rounds} rounds, {options.limit} under way"
    report.legend = LEGEND
    report.begin(COLUMNS)
    report.measured["sweeps"] = {}
    parts = sorted(options.part or PARTS)
    variants = [Variant(), *map(Variant, options.fixed or FIXED)]
    variants += [Variant(line, part) for line in options.policy or ("recompute | disk_spill",) for part in parts]
    if options.beside:
        beside = options.beside_policy or ("budget:size={budget}B",)
        variants += [Variant(line, part, options.beside.resolve()) for line in beside for part in parts]
    differ = False
    for name in options.workload or WORKLOADS:
        model = tiny(WORKLOADS[name]) if options.tiny else WORKLOADS[name]
        saved = run(Job(name, "benchmarks.models.training:saves", {"model": asdict(model)}))
        with Turns({variant: job(model, variant, saved, options) for variant in variants}) as turns:
            for variant in variants:
                turns.alone(variant, variant.untimed)
            turns.rounds(options.rounds)
            measured = turns.finish()
        report.measured["sweeps"][name] = [
            asdict(variant) | {"package": str(variant.package), **found} for variant, found in measured.items()
        ]
        for row in rows(name, measured, saved):
            report.row(row)
            differ |= row[-1] == "differ"
    return differ
