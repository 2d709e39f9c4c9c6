"""Whole training steps on the CPU under policies, against no hooks and against checkpoints, with the bars to meet.

    python -m benchmarks steps                             # disk_spill: every workload, 1 and 2 threads
    python -m benchmarks steps --set policies              # every policy, in float32 and bfloat16
    python -m benchmarks steps --set cores                 # where all cores compute, and where one is to spare
    python -m benchmarks steps --workload gpt --threads 1 --method "quantize:bits=8" --allocator threshold
    python -m benchmarks steps --workload gpt --method disk_spill --method "bare_disk 1" --method "bare_disk 0.5"

Exits with 1 if gradients under a policy that loses nothing are not bitwise those without hooks.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median
from typing import Any

import tensorstash as ts
from benchmarks.harness.bare_disk import BARE_DISK
from benchmarks.harness.report import Report, columns, verdict
from benchmarks.harness.runner import ALLOCATORS, environment, policy_line
from benchmarks.models import Model, training
from benchmarks.models import tiny as small
from tensorstash.cli.comparison import NO_POLICY
from tensorstash.cli.turns import Job, Turns, counted

NONE, CHECKPOINT, SPILL = NO_POLICY, "checkpoint", "disk_spill"
STEP, MEMORY = "step_s", "activation_bytes"
DIRECTORY = "/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir()

GPT = Model(framework="torch", network="gpt", batch=16, rate=1e-4, depth=6, width=384, heads=6, context=256)
WORKLOADS = {
    "gpt": GPT,
    "gpt_dropout": replace(GPT, dropout=0.1, eager=True),
    "resnet": Model(framework="torch", network="resnet", batch=64, rate=1e-4, depth=40, width=16),
    "paddle_gpt": replace(GPT, framework="paddle", batch=12),
}
RESIDENT_MIB = {"gpt": 8, "gpt_dropout": 12, "resnet": 200, "paddle_gpt": 0}
"""How much of the latest activations a policy that only spills may leave in memory, by workload: what its bar has
room for."""

LEGEND = """\
Every variant runs in fresh processes, which take turns with those of the others, step by step; figures are medians,
and ratios medians of those between steps that were made in the same turn. "of default" is relative to no hooks under
the C library's allocator as it is, "of same" to no hooks under the same allocator setting; a bar is met when both are.
"resident" is Limits(resident=...): what the policy may leave in memory; what is quantized is not read ahead
(Limits(ahead=0)). "CPU" is the ratio of processor time, "seen" the resident memory saved for each byte that the policy
took away, "checkpoint" step and memory relative to checkpoints per block."""

COLUMNS = columns("""
    workload | dtype | threads:d | allocator | method | resident MiB:.0f | step s:.3f | step of default:.3f |
    of same:.3f | CPU of same:.3f | activations MiB:.0f | memory of default:.3f | of same:.3f | checkpoint:> |
    seen:.2f | gradients | bars
""")

EVERY = ("keep", "compress", SPILL, "compress | disk_spill", "quantize:bits=8", "quantize:bits=4", "quantize:bits=2")
EVERY += ("quantize:bits=4 | disk_spill", "cast:dtype=bfloat16")

BARS: Mapping[tuple[Any, ...], Mapping[str, float]] = {
    ("gpt", "quantize:bits=8"): {"step": 1.10, "memory": 0.42},
    ("gpt", "quantize:bits=4"): {"step": 1.12, "memory": 0.31},
    ("gpt", "quantize:bits=4 | disk_spill"): {"memory": 0.15},
    ("gpt", "cast:dtype=bfloat16"): {"step": 1.08, "memory": 0.60},
    ("gpt", "compress"): {"memory": 1.0},
    ("gpt", SPILL): {"step": 1.13, "memory": 0.26, "CPU": 1.10},
    ("gpt", f"recompute | {SPILL}"): {"step": 1.08, "memory": 0.20, "checkpoint": 1.0},
    ("gpt_dropout", "pack_masks"): {"step": 1.03, "memory": 0.88},
    ("gpt_dropout", SPILL): {"step": 1.08, "memory": 0.20},
    ("resnet", SPILL): {"step": 1.15, "memory": 0.45},
    ("paddle_gpt", SPILL): {"step": 1.10},
    ("gpt", SPILL, "float32", 1): {"step": 1.03, "memory": 0.26, "CPU": 1.10},
    ("gpt", "compress", "bfloat16", 1): {"step": 1.20},
    ("gpt", "compress", "bfloat16", 2): {"step": 1.20},
}
"""What a policy may cost at most, by workload and method in float32, or by type and threads too: duration of a step,
resident memory of activations and processor time, relative to no hooks; step and memory, relative to checkpoints."""

FLOAT32, ALL = ("float32",), ("float32", "bfloat16")
SETS: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[int], Sequence[str] | None]] = {
    "spill": (list(WORKLOADS), FLOAT32, (1, 2), (SPILL,)),
    "policies": (("gpt", "resnet", "paddle_gpt"), ALL, (1,), EVERY),
    "cores": (("gpt", "gpt_dropout", "resnet"), FLOAT32, (2, 1), None),
}
"""What is compared, unless told otherwise: workloads, types, threads, and methods: those that have a bar where that is
None."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What one process does: train a workload by a method, ``"none"``, ``"checkpoint"``, or a policy as one line."""

    workload: str
    method: str = NONE
    allocator: str = "advised"
    threads: int = 1
    dtype: str = "float32"
    resident_bytes: int = 0

    @property
    def is_policy(self) -> bool:
        return self.method not in (NONE, CHECKPOINT)

    @property
    def bars(self) -> Mapping[str, float]:
        usual = BARS.get((self.workload, self.method), {}) if self.dtype == "float32" else {}
        return BARS.get((self.workload, self.method, self.dtype, self.threads), usual)


def model_of(variant: Variant, *, tiny: bool) -> Model:
    """Return what a variant trains."""
    model = WORKLOADS[variant.workload]
    is_recomputed = variant.method == CHECKPOINT
    model = replace(model, dtype=variant.dtype, threads=variant.threads, recompute=is_recomputed)
    return small(model) if tiny else model


def policy_of(variant: Variant, directory: str) -> str:
    """Return what the process of a variant is told to train under."""
    if variant.method.startswith(BARE_DISK):
        return f"{variant.method} {directory}"
    return variant.method.replace(SPILL, f"{SPILL}:directory={directory}") if variant.is_policy else NONE


def job(variant: Variant, options: argparse.Namespace) -> Job:
    """Return the process of a variant, with sizes and limits as the command line has them."""
    ahead = 0 if "quantize" in variant.method else options.limit  # quantized payloads are few bytes, and soon decoded
    limits = {"in_flight": options.limit, "ahead": ahead, "resident": variant.resident_bytes}
    return training.job(
        str(variant),
        model_of(variant, tiny=options.tiny),
        options.steps,
        policy_of(variant, options.directory),
        environment(threads=variant.threads, allocator=variant.allocator),
        scope=limits | ({"min_bytes": 0} if options.tiny else {}),
        compared=[options.steps - 1],
    )


def variants(options: argparse.Namespace) -> Iterator[list[Variant]]:
    """Yield what the command line asks for, as groups of what is compared."""
    workloads, dtypes, threads, methods = SETS[options.set]
    for workload in options.workload or workloads:
        # Paddle computes on one thread, for importing it sets OMP_NUM_THREADS, and knows little of bfloat16 on the CPU.
        is_paddle = workload.startswith("paddle")
        told = (FLOAT32, (1,)) if is_paddle else (options.dtype or dtypes, options.threads or threads)
        chosen = options.method or methods or dict.fromkeys(method for name, method, *_ in BARS if name == workload)
        for dtype, count in product(*told):
            found = [Variant(workload, NONE, "default", count, dtype)]
            for allocator, method in product(options.allocator or ("advised",), (NONE, CHECKPOINT, *chosen)):
                resident = RESIDENT_MIB[workload] * 2**20 if method == SPILL else 0
                found.append(Variant(workload, method, allocator, count, dtype, resident))
            yield list(dict.fromkeys(found))


Runs = Mapping[Variant, Sequence[Mapping[str, Any]]]
"""What :func:`benchmarks.models.training.train` has reported in each round, by variant."""


def measure(group: Sequence[Variant], options: argparse.Namespace) -> Runs:
    """Run what is compared, all at one time, as many rounds as the command line has."""
    runs: dict[Variant, list[Mapping[str, Any]]] = {variant: [] for variant in group}
    on_turn = counted(options.rounds * options.steps * len(group))
    for _ in range(options.rounds):
        with Turns[Variant](on_turn) as turns:
            turns.start({variant: job(variant, options) for variant in group})
            turns.rounds(options.steps)
            for variant, found in turns.finish().items():
                runs[variant].append(found)
    return runs


def figures(run: Mapping[str, Any], name: str) -> Sequence[float]:
    """Return the figure of each step but the first, or the one of all steps."""
    return run[name][1:] if isinstance(run[name], list) else [run[name]]


@dataclass(frozen=True, slots=True)
class Row:
    """One variant beside no hooks, under the default allocator and under its own setting, and beside checkpoints."""

    variant: Variant
    runs: Runs

    def cells(self) -> Iterator[Any]:
        """Yield the value of each column."""
        v, bases = self.variant, (self._base(allocator="default"), self._base())
        step, memory, cpu = ([self.ratio(name, base) for base in bases] for name in (STEP, MEMORY, "cpu_s"))
        checkpoint = [self.ratio(name, self._base(method=CHECKPOINT)) for name in (STEP, MEMORY)]
        found = {"step": step, "memory": memory, "CPU": cpu, "checkpoint": checkpoint}
        yield from (v.workload, v.dtype, v.threads, v.allocator, v.method)
        yield v.resident_bytes / 2**20 if v.is_policy else None
        yield from (self._middle(STEP), *step, cpu[1], self._middle(MEMORY) / 2**20, *memory)
        yield ", ".join(f"{each:.3f}" for each in checkpoint)
        yield self.seen if any(run["stashed_bytes"] for run in self.runs[v]) else None
        yield ("bitwise" if self.is_exact else "differ") if v.is_policy else None
        missed = (f"{name} > {most}" for name, most in v.bars.items() if max(found[name]) > most)
        yield verdict(missed) if v.bars else None

    def _base(self, method: str = NONE, **changes: str) -> Variant:
        base = replace(self.variant, method=method, resident_bytes=0, **changes)
        return base if base in self.runs else replace(base, method=NONE)

    def _middle(self, name: str) -> float:
        return median(value for run in self.runs[self.variant] for value in figures(run, name))

    def ratio(self, name: str, base: Variant) -> float:
        """Return the median of a figure relative to what another variant had in the same step of the same round."""
        pairs = zip(self.runs[self.variant], self.runs[base], strict=True)
        both = ((figures(ours, name), figures(theirs, name)) for ours, theirs in pairs)
        return median(our / their for pair in both for our, their in zip(*pair, strict=True))

    @property
    def is_exact(self) -> bool:
        """Whether gradients are bitwise those of training without hooks."""
        runs = (*self.runs[self.variant], *self.runs[self._base(allocator="default")])
        return len({run["gradients_sha256"] for run in runs}) == 1

    @property
    def is_broken(self) -> bool:
        """Whether gradients differ although the policy loses nothing."""
        plans = ts.parse(self.variant.method).alternatives() if self.variant.is_policy else ()
        return bool(plans) and not self.is_exact and all(codec.lossless for plan in plans for codec in plan.codecs)

    @property
    def seen(self) -> float:
        return median(
            (theirs[MEMORY] - ours[MEMORY]) / max(ours["stashed_bytes"] - self.variant.resident_bytes, 1)
            for ours, theirs in zip(self.runs[self.variant], self.runs[self._base()], strict=True)
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=SETS, default="spill", help="what is compared unless told otherwise")
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--method", action="append", type=policy_line, help="a policy as one line")
    parser.add_argument("--threads", action="append", type=int)
    parser.add_argument("--allocator", action="append", choices=ALLOCATORS)
    parser.add_argument("--rounds", type=int, default=2, help="of fresh processes")
    parser.add_argument("--steps", type=int, default=5, help="of a process, 2 or more; the first does not count")
    parser.add_argument("--limit", default="48 MiB", help="bytes in flight and ahead; twice the largest tensor")
    parser.add_argument("--directory", default=DIRECTORY)
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")


def main(options: argparse.Namespace, report: Report) -> bool:
    report.conditions += f"; {options.rounds} rounds of {options.steps} steps, {options.limit} under way"
    report.legend = LEGEND
    report.begin(COLUMNS)
    measured = report.measured["measured"] = []
    broken: list[Variant] = []
    for group in variants(options):
        runs = measure(group, options)
        measured += [{"variant": asdict(variant), "runs": some} for variant, some in runs.items()]
        rows = [Row(variant, runs) for variant in group]
        for row in rows:
            report.row(row.cells())
        broken += [row.variant for row in rows if row.is_broken]
    print(*(f"gradients differ: {variant}" for variant in broken), sep="\n", end="", file=sys.stderr)
    return bool(broken)
