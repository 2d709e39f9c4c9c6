"""Budgets from a fifth to all of what a step saves, held against everything else that fits into them, with the bars.

    python -m benchmarks budget_sweep
    python -m benchmarks budget_sweep --workload torch_gpt --rounds 9
    python -m benchmarks budget_sweep --more 3 --json sweep.json

The last one measures three budgets of each workload, beside everything else, and adds them to what the file has: run it
until there are no more, and the table is that of all.

Each budget, and each of what it is compared with, runs in a fresh process; all take turns, step by step. Exits with 1
if gradients are not bitwise those without hooks.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self

from benchmarks.harness import training
from benchmarks.harness.report import Report, machine
from benchmarks.models import Model
from tensorstash.cli.comparison import Variant, compare
from tensorstash.cli.turns import Job, run
from tensorstash.host.allocator import advised_environment

GPT = Model(framework="torch", network="gpt", batch=16, rate=1e-3, depth=10, width=192, heads=6, context=256)
WORKLOADS = {
    "torch_gpt": GPT,
    "torch_resnet": Model(framework="torch", network="resnet", batch=48, rate=1e-3, depth=40, width=16),
    "paddle_gpt": replace(GPT, framework="paddle", depth=8, width=128, heads=4),
}
TINY = {"batch": 4, "depth": 2, "width": 64, "heads": 4, "context": 64}

PARTS: Sequence[float] = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
KEEP = Variant("keep")
RIVALS = (
    KEEP,
    Variant("recompute"),
    Variant("disk_spill"),
    Variant("recompute | disk_spill"),
    Variant("compress | disk_spill"),
    Variant(is_checkpointed=True),
)
LIMIT = "16 MiB"

HELD, RESIDENT, TIME, DECLINED, MONOTONE = 1.02, 1.05, 1.03, 1.01, 1.03

LEGEND = f"""\
"budget" is the part of the native peak, the most bytes that autograd holds without hooks. "held" is the observed peak
of what is saved and held, relative to the budget (bar: {HELD}). "resident" is the peak of the process above the floor
(libraries, model, gradients, optimizer state), relative to what the budget implies: that without hooks, less what the
native peak has above the budget (bar: {RESIDENT}). "step" is relative to no hooks, "of best" to the fastest of what
fits by the same measure of memory (bar: {TIME}, and {DECLINED} of keep where all fits). "order" is missed where a
larger budget is slower, or takes less resident memory, by more than {MONOTONE - 1:.0%}. Medians of ratios of the same
round; steps in which a budget measures and tries plans do not count for time."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was measured of one workload.

    Args:
        native: the most bytes that autograd holds without hooks.
        measured: what each process has reported.
    """

    native: int
    measured: Mapping[Variant, Mapping[str, Any]]

    @classmethod
    def read(cls, native: int, parts: Sequence[float], measured: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return what :meth:`plain` has made plain."""
        variants = [Variant(), *RIVALS, *(budget(native, part) for part in parts)]
        return cls(native, {variant: measured[str(variant)] for variant in variants})

    def plain(self, parts: Sequence[float]) -> dict[str, Any]:
        """Return plain values, with the parts of the native peak that are its budgets."""
        measured = {str(variant): one for variant, one in self.measured.items()}
        return {"native": self.native, "parts": list(parts), "measured": measured}

    def resident(self, variant: Variant) -> int:
        return int(self.measured[variant]["activation_bytes"])

    def implied(self, nbytes: float) -> float:
        """Return the resident memory that comes with so many bytes that are saved and held."""
        return self.resident(Variant()) - self.native + nbytes

    def times(self, ours: Variant, theirs: Variant, name: str = "step_s") -> float:
        """Return the median ratio of the steps of a round."""
        pairs = ((self.measured[each][name][each.untimed :]) for each in (ours, theirs))
        return float(median(a / b for a, b in zip(*pairs, strict=True)))

    def best(self, budget: float) -> Variant | None:
        """Return the fastest of what fits, if anything does."""
        fitting = [rival for rival in RIVALS if self.resident(rival) <= HELD * self.implied(budget)]
        return min(fitting, key=lambda rival: self.times(rival, Variant()), default=None)


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
        advised_environment(os.environ),
        limits={"in_flight": LIMIT, "ahead": LIMIT},
        min_bytes=0 if tiny else "64KiB",
        compared=list(range(compared)),
    )


def sweep(model: Model, parts: Sequence[float], rounds: int, *, tiny: bool) -> Sweep:
    """Measure a workload.

    Args:
        model: what is trained.
        parts: of the native peak, the budgets.
        rounds: steps of each process that count.
        tiny: whether tensors of all sizes are looked at.
    """
    native = run(job(model, budget(2**50, 1), steps=2, compared=0, tiny=tiny))["native_bytes"]
    variants = [Variant(), *RIVALS, *(budget(native, part) for part in parts)]

    def on_turn(_: Variant) -> None:
        print(".", end="", file=sys.stderr, flush=True)

    def process(variant: Variant, _: int) -> Job:
        return job(model, variant, steps=variant.untimed + rounds, compared=rounds + 1, tiny=tiny)

    return Sweep(native, compare(variants, process, rounds, on_turn))


def rows(name: str, sweeps: Mapping[float, Sweep]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table: what is compared, then the budgets.

    Args:
        name: of the workload.
        sweeps: the one in which each budget was measured, the least first; what is compared is that of the first one.
    """
    plain = Variant()
    found = next(iter(sweeps.values()))
    base = found.measured[plain]
    for variant in (plain, *RIVALS):
        peak = found.resident(variant) / found.resident(plain)
        step = found.times(variant, plain)
        nbytes = f"{found.resident(variant) / 2**20:.0f}"
        exact = "bitwise" if found.measured[variant]["gradients_sha256"] == base["gradients_sha256"] else "differ"
        yield name, str(variant), nbytes, "", f"{peak:.3f} of none", f"{step:.3f}", "", exact, ""
    slower = largest = 0.0
    times = {part: found.times(budget(found.native, part), plain) for part, found in sweeps.items()}
    for part, found in sweeps.items():
        base = found.measured[plain]
        variant = budget(found.native, part)
        measured = found.measured[variant]
        best = found.best(part * found.native)
        ratios = {
            "held": (measured["stats"]["peak_held"] / (part * found.native), HELD),
            "resident": (found.resident(variant) / found.implied(part * found.native), RESIDENT),
            "step": (found.times(variant, best) if best else 0.0, DECLINED if best == KEEP else TIME),
        }
        missed = [f"{what} > {bar}" for what, (ratio, bar) in ratios.items() if ratio > bar]
        slower = max((times[other] for other in times if other > part), default=0.0) / times[part]
        missed += ["order of steps"] if slower > MONOTONE else []
        resident = found.resident(variant)
        missed += ["order of peaks"] if resident * MONOTONE < largest else []
        largest = max(largest, resident)
        exact = "bitwise" if measured["gradients_sha256"] == base["gradients_sha256"] else "differ"
        figures = [f"{ratios['held'][0]:.3f}", f"{ratios['resident'][0]:.3f}", f"{times[part]:.3f}"]
        against = f"{ratios['step'][0]:.3f} of {best}" if best else "nothing else fits"
        nbytes = f"{resident / 2**20:.0f}"
        yield (
            name,
            f"budget {part:.1f}",
            nbytes,
            *figures,
            against,
            exact,
            f"missed: {', '.join(missed)}" if missed else "met",
        )


def allocator() -> str:
    """Say what the processes take their memory from."""
    advised = advised_environment(os.environ)
    library = os.path.basename(advised.get("LD_PRELOAD", ""))
    return f"{library} preloaded" if library else f"MALLOC_MMAP_THRESHOLD_={advised.get('MALLOC_MMAP_THRESHOLD_')}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--part", action="append", type=float, help="of the native peak, only this one; repeatable")
    parser.add_argument("--more", type=int, metavar="N", help="at most so many budgets of each that --json has not yet")
    parser.add_argument("--rounds", type=int, default=6, help="steps of each that count (6)")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")


def main(options: argparse.Namespace, report: Report) -> int:
    packages = "torch", "paddlepaddle", "numpy"
    report.conditions = f"{machine(packages)}; {allocator()}; {options.rounds} rounds."
    report.legend = LEGEND
    heads = ("workload", "policy", "resident MiB", "held", "resident", "step", "of best", "gradients", "bars")
    report.begin(*heads, left=("workload", "policy", "of best", "gradients", "bars"))
    before = options.json if options.more and options.json and options.json.exists() else None
    measured = report.measured["sweeps"] = json.loads(before.read_text())["sweeps"] if before else {}
    parts, differ = sorted(options.part or PARTS), False
    for name in options.workload or WORKLOADS:
        model = replace(WORKLOADS[name], **TINY) if options.tiny else WORKLOADS[name]
        runs = measured.setdefault(name, [])
        missing = [part for part in parts if not any(part in one["parts"] for one in runs)][: options.more]
        if missing:
            runs.append(sweep(model, missing, options.rounds, tiny=options.tiny).plain(missing))
        found = {part: Sweep.read(**one) for one in runs for part in one["parts"]}
        for row in rows(name, dict(sorted(found.items()))):
            report.row(*row, told=False)
            differ |= "differ" in row
    return int(differ)
