"""One table of whole training steps: every variant beside training without hooks, and the bars it has to meet."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from steps import (
    ALLOCATORS,
    DIRECTORY,
    NONE,
    RECOMPUTE,
    WORKLOADS,
    Effort,
    Figure,
    Run,
    Runs,
    Variant,
    activation_bytes,
    as_json,
    cpu_s,
    machine,
    middle,
    ratio,
    same_gradients,
    step_s,
    take_turns,
)

import tensorstash as ts

LEAST_SEEN = 0.7
"""Part of the removed bytes that has to be missing from resident memory."""

LEGEND = """\
Every variant runs in fresh processes, which take turns with those of the others, step by step; figures are medians,
and ratios medians of those between steps that were made in the same turn. "of default" is relative to no hooks under
the C library's allocator as it is, "of same" to no hooks under the same allocator setting; a bar is met when both are.
"resident" is Limits(resident=...): what the policy may leave in memory; what is quantized is not read ahead
(Limits(ahead=0)). "CPU" is the ratio of processor time, "seen" the resident memory saved for each byte that the policy
took away, "recomputation" step and memory relative to it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a policy may cost at most.

    Args:
        step: duration of a step, relative to training without hooks.
        memory: of activations, resident, relative to training without hooks.
        beats: ``"step"`` if a step has to be faster than recomputation; ``"either"`` if one of step and memory has to
            be better than with recomputation, and the other not worse.
        seen: whether at least :data:`LEAST_SEEN` of what was removed has to be missing from resident memory.
    """

    step: float | None = None
    memory: float | None = None
    beats: str = ""
    seen: bool = False


Bars = Callable[[Variant], Bar | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One variant beside no hooks, under the default allocator and under its own setting, and beside recomputation."""

    variant: Variant
    runs: Sequence[Run]
    default: Sequence[Run]
    alike: Sequence[Run]
    recompute: Sequence[Run]
    bar: Bar | None

    def cells(self) -> Mapping[str, str]:
        """Return the text of each column, by its head."""
        v = self.variant
        return {
            "workload": v.workload,
            "dtype": v.dtype,
            "threads": str(v.threads),
            "allocator": v.allocator,
            "method": v.method.replace("|", "\\|"),
            "resident MiB": f"{v.resident_bytes / 2**20:.0f}" if self.is_policy else "",
            "step s": f"{middle(step_s, self.runs):.3f}",
            "step of default": self._ratio(step_s, self.default),
            "of same": self._ratio(step_s, self.alike),
            "CPU of same": self._ratio(cpu_s, self.alike),
            "activations MiB": f"{middle(activation_bytes, self.runs) / 2**20:.0f}",
            "memory of default": self._ratio(activation_bytes, self.default),
            "of same ": self._ratio(activation_bytes, self.alike),
            "recomputation": ", ".join(self._ratio(figure, self.recompute) for figure in (step_s, activation_bytes)),
            "seen": f"{self.seen:.2f}" if any(run.stashed_bytes for run in self.runs) else "",
            "gradients": ("bitwise" if self.exact else "differ") if self.is_policy else "",
            "bars": ""
            if self.bar is None
            else "missed: " + ", ".join(missed)
            if (missed := [*self.missed()])
            else "met",
        }

    def _ratio(self, figure: Figure, base: Sequence[Run]) -> str:
        return f"{ratio(figure, self.runs, base):.3f}"

    @property
    def is_policy(self) -> bool:
        return self.variant.method not in (NONE, RECOMPUTE)

    @property
    def exact(self) -> bool:
        """Whether gradients are bitwise those of training without hooks."""
        return same_gradients(self.runs, self.default)

    @property
    def is_broken(self) -> bool:
        """Whether gradients differ although the policy loses nothing."""
        if not self.is_policy or self.exact:
            return False
        return all(codec.lossless for plan in ts.parse(self.variant.method).alternatives() for codec in plan.codecs)

    @property
    def seen(self) -> float:
        return median(
            (theirs.activation_bytes - ours.activation_bytes) / max(ours.stashed_bytes - self.variant.resident_bytes, 1)
            for ours, theirs in zip(self.runs, self.alike, strict=True)
        )

    def missed(self) -> Iterator[str]:
        """Yield the bars that are not met."""
        bar = self.bar or Bar()
        for name, figure, most in (("step", step_s, bar.step), ("memory", activation_bytes, bar.memory)):
            if most is not None and max(ratio(figure, self.runs, base) for base in (self.default, self.alike)) > most:
                yield f"{name} > {most}"
        step, memory = (ratio(figure, self.runs, self.recompute) for figure in (step_s, activation_bytes))
        if (bar.beats == "step" and step >= 1) or (bar.beats == "either" and (max(step, memory) > 1 or step == memory)):
            yield "recomputation is better"
        if bar.seen and self.seen < LEAST_SEEN:
            yield f"seen < {LEAST_SEEN}"


def rows(runs: Runs, bars: Bars) -> Iterator[Row]:
    """Yield the lines of the table."""
    for variant, some in runs.items():
        none, recompute = (replace(variant, method=method) for method in (NONE, RECOMPUTE))
        default = replace(none, allocator="default")
        base = runs.get(recompute, runs[none])
        yield Row(variant, some, runs[default], runs[none], base, bars(variant))


def compare(
    description: str,
    bars: Bars,
    *,
    workloads: Sequence[str],
    dtypes: Sequence[str],
    methods: Sequence[str],
    threads: Sequence[int],
    minutes: float,
) -> int:
    """Run what the command line asks for, print the table, and return the exit status.

    Args:
        description: of the script.
        bars: what each variant has to meet.
        workloads: unless told otherwise, as the following.
        dtypes: of weights and activations.
        methods: policies, beside no hooks and recomputation.
        threads: for computing.
        minutes: no round is begun that would end later.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--method", action="append", help="a policy as one line")
    parser.add_argument("--threads", action="append", type=int)
    parser.add_argument("--allocator", action="append", choices=ALLOCATORS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=minutes, help="begin no round that would end later")
    parser.add_argument("--limit", default="48 MiB", help="bytes in flight and ahead; twice the largest tensor")
    parser.add_argument("--directory", default=DIRECTORY)
    parser.add_argument("--idle", help="bytes of freed memory that the package keeps for later")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    options = parser.parse_args()

    variants: dict[Variant, None] = {}
    for workload in options.workload or workloads:
        # Paddle computes on one thread, for importing it sets OMP_NUM_THREADS, and knows little of bfloat16 on the CPU.
        is_paddle = workload.startswith("paddle")
        for dtype in ("float32",) if is_paddle else options.dtype or dtypes:
            for count in (1,) if is_paddle else options.threads or threads:
                variants[Variant(workload, NONE, "default", count, dtype)] = None
                for allocator in options.allocator or ("advised",):
                    for method in (NONE, RECOMPUTE, *(options.method or methods)):
                        variants[Variant(workload, method, allocator, count, dtype)] = None
    effort = Effort(options.steps, options.limit, options.directory, options.idle, options.tiny)
    runs = take_turns(list(variants), effort, rounds=options.rounds, minutes=options.minutes)
    table = list(rows(runs, bars))
    columns = list(table[0].cells())
    print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n")
    for row in table:
        print(f"| {' | '.join(row.cells().values())} |")
    print(
        "",
        LEGEND,
        f"{len(table[0].runs)} rounds of {options.steps} steps, {options.limit} under way. {machine()}.",
        sep="\n",
    )
    if options.json:
        options.json.write_text(as_json(runs))
    broken = [row.variant for row in table if row.is_broken]
    print(*(f"gradients differ: {variant}" for variant in broken), sep="\n", end="", file=sys.stderr)
    return int(bool(broken))
