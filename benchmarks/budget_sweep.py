"""Budgets from a fifth to all of what a step saves, held against everything else that fits into them, with the bars.

    python -m benchmarks budget_sweep
    python -m benchmarks budget_sweep --workload torch_gpt --rounds 9

Each budget, and each of what it is compared with, runs in a fresh process; all take turns, step by step. Exits with 1
if gradients are not bitwise those without hooks.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.harness.moments import MOMENTS, Moment
from benchmarks.harness.report import Report, columns, verdict
from benchmarks.harness.runner import advice
from benchmarks.models import Model, tiny, training
from tensorstash.cli import memory
from tensorstash.cli.comparison import Variant, compare, ratio, steps_of
from tensorstash.cli.turns import Job, counted, run

GPT = Model(framework="torch", network="gpt", batch=16, rate=1e-3, depth=10, width=192, heads=6, context=256)
WORKLOADS = {
    "torch_gpt": GPT,
    "torch_resnet": Model(framework="torch", network="resnet", batch=48, rate=1e-3, depth=40, width=16),
    "paddle_gpt": replace(GPT, framework="paddle", depth=8, width=128, heads=4),
}

PARTS: Sequence[float] = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
NONE, KEEP = Variant(), Variant("keep")
LINES = ("recompute", "disk_spill", "recompute | disk_spill", "compress | disk_spill")
RIVALS = (KEEP, *map(Variant, LINES), Variant(is_checkpointed=True))
LIMIT = "48 MiB"

HELD, RESIDENT, TIME, DECLINED, MONOTONE = 1.02, 1.05, 1.03, 1.01, 1.03

COLUMNS = columns("""
    workload | policy | resident MiB:.0f | held:.3f | of turn:.3f | resident:.3f | step:.3f | of best | gradients | bars
""")

LEGEND = f"""\
"budget" is the part of the native peak, the most bytes that autograd holds without hooks. "held" is the observed peak
of what is saved and held, relative to the budget (bar: {HELD}). "resident" is the peak of the process above the floor
(libraries, model, gradients, optimizer state), relative to what the budget implies: at each moment of a step that keeps
everything, what is in use beside what is held, and the budget or what is held, whichever is less; the most of that
(bar: {RESIDENT}). "of turn" is relative to what the moment of the native peak alone implies: the peak without hooks,
less what the native peak has above the budget. That is too little where backward needs more beside what is held than
the turn from forward to backward does. "step" is relative to no hooks, "of best" to the fastest of what
fits by the measure of "resident" (bar: {TIME}, and {DECLINED} of keep where all fits). "order" is missed where a
larger budget is slower, or takes less resident memory, by more than {MONOTONE - 1:.0%}. Medians of ratios of the same
round; steps in which a budget measures and tries plans do not count for time."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was measured of one workload."""

    native: int  # the most bytes that autograd holds without hooks
    measured: Mapping[Variant, Mapping[str, Any]]  # what each process has reported
    moments: Sequence[Moment]  # of a step that keeps everything

    def resident(self, variant: Variant) -> int:
        return int(self.measured[variant]["activation_bytes"])

    def implied(self, nbytes: float) -> float:
        """Return the resident memory that comes with so many bytes that are saved and held."""
        peak = max(resident for _, resident in self.moments)
        return self.resident(NONE) - peak + max(each - max(held - nbytes, 0) for held, each in self.moments)

    def implied_by_turn(self, nbytes: float) -> float:
        """Return the same as if all moments were like that of the native peak."""
        return self.resident(NONE) - self.native + nbytes

    def time(self, ours: Variant, theirs: Variant = NONE) -> float:
        """Return the median ratio of the steps of a round."""
        return ratio(self.measured, ours, theirs, "step_s")

    def gradients(self, variant: Variant) -> str:
        ours, theirs = (self.measured[each]["gradients_sha256"] for each in (variant, NONE))
        return "bitwise" if ours == theirs else "differ"

    def best(self, budget: float) -> Variant | None:
        """Return the fastest of what fits, if anything does."""
        fitting = [rival for rival in RIVALS if self.resident(rival) <= HELD * self.implied(budget)]
        return min(fitting, key=self.time, default=None)


def budget(native: int, part: float) -> Variant:
    """Return the variant of a part of the native peak."""
    return Variant(f"budget:size={round(native * part)}B")


def job(model: Model, variant: Variant, *, steps: int, compared: int, tiny: bool) -> Job:
    """Return the process of a variant."""
    return training.job(
        str(variant),
        replace(model, recompute=variant.is_checkpointed),
        steps,
        variant.policy,
        scope={"in_flight": LIMIT, "ahead": LIMIT, **({"min_bytes": 0} if tiny else {})},
        compared=list(range(compared)),
    )


def watch(model: Model) -> Job:
    """Return the process of a step that keeps everything; blocks leave it as they are freed: what is left is in use."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment = plain | {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}
    return training.job(MOMENTS, model, 3, f"{MOMENTS} {model.framework}", environment, scope={})


def sweep(model: Model, parts: Sequence[float], rounds: int, *, tiny: bool) -> Sweep:
    """Measure a workload under budgets of these parts of the native peak; ``rounds`` steps of each process count."""
    native = run(job(model, budget(2**50, 1), steps=2, compared=0, tiny=tiny))["native_bytes"]
    variants = [NONE, *RIVALS, *(budget(native, part) for part in parts)]

    def process(variant: Variant, _: int) -> Job:
        return job(model, variant, steps=variant.untimed + rounds, compared=rounds + 1, tiny=tiny)

    measured = compare(variants, process, rounds, counted(steps_of(variants, rounds)))
    # Where peaks of resident memory cannot begin anew, nothing is known of other moments than that of the peak.
    seen = run(watch(model))[MOMENTS] if memory.RESETS else [(native, measured[NONE]["activation_bytes"])]
    return Sweep(native, measured, seen)


def rows(name: str, found: Sweep, parts: Sequence[float]) -> Iterator[tuple[Any, ...]]:
    """Yield the lines of the table: what is compared, then the budgets, the least first."""
    for variant in (NONE, *RIVALS):
        peak = f"{found.resident(variant) / found.resident(NONE):.3f} of none"
        resident, exact = found.resident(variant) / 2**20, found.gradients(variant)
        yield name, str(variant), resident, None, None, peak, found.time(variant), None, exact, None
    largest = 0.0
    times = {part: found.time(budget(found.native, part)) for part in parts}
    for part in parts:
        nbytes = part * found.native
        variant, best = budget(found.native, part), found.best(nbytes)
        resident = found.resident(variant)
        ratios = {
            "held": (found.measured[variant]["stats"]["peak_held"] / nbytes, HELD),
            "resident": (resident / found.implied(nbytes), RESIDENT),
            "step": (found.time(variant, best) if best else 0.0, DECLINED if best == KEEP else TIME),
        }
        held, implied, step = (value for value, _ in ratios.values())
        missed = [f"{what} > {bar}" for what, (value, bar) in ratios.items() if value > bar]
        slower = any(times[other] > MONOTONE * times[part] for other in parts if other > part)
        missed += ["order of steps"] * slower + ["order of peaks"] * (resident * MONOTONE < largest)
        largest = max(largest, resident)
        against = f"{step:.3f} of {best}" if best else "nothing else fits"
        exact, label, of_turn = found.gradients(variant), f"budget {part:.1f}", resident / found.implied_by_turn(nbytes)
        yield name, label, resident / 2**20, held, of_turn, implied, times[part], against, exact, verdict(missed)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--part", action="append", type=float, help="of the native peak, only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=6, help="steps of each that count (6)")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")


def main(options: argparse.Namespace, report: Report) -> bool:
    advised = ", ".join(map("=".join, advice().items())) or "allocator as advised"
    report.conditions += f"; {advised}; {options.rounds} rounds"
    report.legend = LEGEND
    report.begin(COLUMNS)
    measured = report.measured["sweeps"] = {}
    parts, differ = sorted(options.part or PARTS), False
    for name in options.workload or WORKLOADS:
        model = tiny(WORKLOADS[name]) if options.tiny else WORKLOADS[name]
        found = sweep(model, parts, options.rounds, tiny=options.tiny)
        measured[name] = {str(variant): one for variant, one in found.measured.items()}
        for row in rows(name, found, parts):
            report.row(row)
            differ |= "differ" in row
    return differ
