"""Whole training steps on the CPU under policies, against no hooks and against checkpoints, with the bars to meet.

    python -m benchmarks steps                             # disk_spill: every workload, 1 and 2 threads
    python -m benchmarks steps --set policies              # every policy, in float32 and bfloat16
    python -m benchmarks steps --set cores                 # where all cores compute, and where one is to spare
    python -m benchmarks steps --workload gpt --threads 1 --method "quantize:bits=8" --allocator threshold

Exits with 1 if gradients under a policy that loses nothing are not bitwise those without hooks.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.harness import training
from benchmarks.harness.comparison import CHECKPOINT, NONE, Bar, Runs, Variant, rows
from benchmarks.harness.report import Report, machine
from benchmarks.harness.runner import ALLOCATORS, environment, repeat, run_together
from benchmarks.models import Model
from tensorstash.cli.turns import Job

SPILL = "disk_spill"
DIRECTORY = "/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir()

GPT = Model(framework="torch", network="gpt", batch=16, rate=1e-4, depth=6, width=384, heads=6, context=256)
WORKLOADS = {
    "gpt": GPT,
    "gpt_dropout": replace(GPT, dropout=0.1, eager=True),
    "resnet": Model(framework="torch", network="resnet", batch=64, rate=1e-4, depth=40, width=16),
    "paddle_gpt": replace(GPT, framework="paddle", batch=12),
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"batch": 2, "depth": 2, "width": 32, "heads": 2, "context": 32},
    "resnet": {"batch": 4, "depth": 3, "width": 4},
}
"""Other sizes, by network."""

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


SPILL_BARS = {
    "gpt": Bar(1.05, 0.28, beats="step", seen=True),
    "gpt_dropout": Bar(1.08, 0.20, beats="step", seen=True),
    "resnet": Bar(1.20, 0.45, beats="step", seen=True),
    "paddle_gpt": Bar(1.10, beats="step", seen=True),
}

POLICY_BARS = {
    ("float32", "quantize:bits=8"): Bar(1.07, 0.42),
    ("float32", "quantize:bits=4"): Bar(memory=0.31),
    ("float32", "quantize:bits=4 | disk_spill"): Bar(memory=0.15),
    ("bfloat16", "compress"): Bar(beats="either"),
}
"""For the GPT."""


EVERY = ("keep", "compress", SPILL, "compress | disk_spill", "quantize:bits=8", "quantize:bits=4", "quantize:bits=2")
EVERY += ("quantize:bits=4 | disk_spill", "cast:dtype=bfloat16")

RECOMPUTE_SPILL = f"recompute | {SPILL}"
CORES_BARS: Mapping[str, Mapping[str, Bar]] = {
    "gpt": {
        "quantize:bits=8": Bar(1.10, 0.42),
        "quantize:bits=4": Bar(1.12, 0.31),
        "cast:dtype=bfloat16": Bar(1.08, 0.60),
        "compress": Bar(memory=1.0),
        SPILL: Bar(1.13, 0.26, cpu=1.10),
        RECOMPUTE_SPILL: Bar(1.08, 0.20, beats="both"),
    },
    "gpt_dropout": {"pack_masks": Bar(1.03, 0.88)},
    "resnet": {SPILL: Bar(1.15)},
}
SPARE_CORE_BARS = {("gpt", SPILL): Bar(1.03, 0.26, cpu=1.10)}
"""On one thread, where they are others."""

SETS: Mapping[str, Mapping[str, Any]] = {
    "spill": {
        "workload": WORKLOADS,
        "dtype": ["float32"],
        "method": dict.fromkeys(WORKLOADS, (SPILL,)),
        "threads": [1, 2],
        "minutes": 12,
    },
    "policies": {
        "workload": ["gpt", "resnet", "paddle_gpt"],
        "dtype": ["float32", "bfloat16"],
        "method": dict.fromkeys(WORKLOADS, EVERY),
        "threads": [1],
        "minutes": 30,
    },
    "cores": {
        "workload": CORES_BARS,
        "dtype": ["float32"],
        "method": {**dict.fromkeys(WORKLOADS, ()), **CORES_BARS},
        "threads": [2, 1],
        "minutes": 12,
    },
}
"""What is compared, unless told otherwise: values of the options; methods by workload."""


def bar_of(name: str, variant: Variant) -> Bar | None:
    """Return what a variant of a set has to meet."""
    if name == "spill":
        return SPILL_BARS[variant.workload] if variant.method == SPILL else None
    if name == "cores":
        usual = CORES_BARS.get(variant.workload, {}).get(variant.method)
        return SPARE_CORE_BARS.get((variant.workload, variant.method), usual) if variant.threads == 1 else usual
    return POLICY_BARS.get((variant.dtype, variant.method)) if variant.workload == "gpt" else None


def model_of(variant: Variant, *, tiny: bool) -> Model:
    """Return what a variant trains."""
    model = WORKLOADS[variant.workload]
    sizes = TINY[model.network] if tiny else {}
    is_recomputed = variant.method == CHECKPOINT
    return replace(model, dtype=variant.dtype, threads=variant.threads, recompute=is_recomputed, **sizes)


def job(variant: Variant, options: argparse.Namespace) -> Job:
    """Return the process of a variant, with sizes and limits as the command line has them."""
    spill = f"{SPILL}:directory={options.directory}"
    ahead = 0 if "quantize" in variant.method else options.limit  # quantized payloads are few bytes, and soon decoded
    return training.job(
        str(variant),
        model_of(variant, tiny=options.tiny),
        options.steps,
        variant.method.replace(SPILL, spill) if variant.is_policy else NONE,
        environment(threads=variant.threads, allocator=variant.allocator),
        limits={"in_flight": options.limit, "ahead": ahead, "resident": variant.resident_bytes},
        min_bytes=0 if options.tiny else "64KiB",
        idle=options.idle,
        compared=[options.steps - 1],
    )


def variants(options: argparse.Namespace) -> list[Variant]:
    """Return what the command line asks for, each once."""
    chosen = {**SETS[options.set], **{name: value for name, value in vars(options).items() if value}}
    methods = dict.fromkeys(WORKLOADS, options.method) if options.method else chosen["method"]
    found: dict[Variant, None] = {}
    for workload in chosen["workload"]:
        # Paddle computes on one thread, for importing it sets OMP_NUM_THREADS, and knows little of bfloat16 on the CPU.
        is_paddle = workload.startswith("paddle")
        for dtype in ("float32",) if is_paddle else chosen["dtype"]:
            for count in (1,) if is_paddle else chosen["threads"]:
                found[Variant(workload, NONE, "default", count, dtype)] = None
                for allocator in options.allocator or ("advised",):
                    for method in (NONE, CHECKPOINT, *methods[workload]):
                        resident = RESIDENT_MIB[workload] * 2**20 if method == SPILL else 0
                        found[Variant(workload, method, allocator, count, dtype, resident)] = None
    return list(found)


def make_round(runs: Runs, options: argparse.Namespace) -> None:
    """Run every variant once, together with those it is compared with."""
    groups: dict[tuple[str, str, int], list[Variant]] = {}
    for variant in runs:
        groups.setdefault((variant.workload, variant.dtype, variant.threads), []).append(variant)
    for group in groups.values():
        found = run_together({variant: job(variant, options) for variant in group}, options.steps)
        for variant in group:
            runs[variant].append(found[variant])
            print(".", end="", file=sys.stderr, flush=True)
    print(f" a round of {len(runs)} runs", file=sys.stderr)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=SETS, default="spill", help="what is compared unless told otherwise")
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--method", action="append", help="a policy as one line")
    parser.add_argument("--threads", action="append", type=int)
    parser.add_argument("--allocator", action="append", choices=ALLOCATORS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="of a process, 2 or more; the first does not count")
    parser.add_argument("--minutes", type=float, help="begin no round that would end later")
    parser.add_argument("--limit", default="48 MiB", help="bytes in flight and ahead; twice the largest tensor")
    parser.add_argument("--directory", default=DIRECTORY)
    parser.add_argument("--idle", help="bytes of freed memory that the package keeps for later")
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that it runs")


def main(options: argparse.Namespace, report: Report) -> int:
    runs: Runs = {variant: [] for variant in variants(options)}
    minutes = options.minutes or SETS[options.set]["minutes"]
    rounds = repeat(partial(make_round, runs, options), rounds=options.rounds, minutes=minutes)
    table = list(rows(runs, partial(bar_of, options.set)))
    heads = list(table[0].cells())
    where = machine(("torch", "paddlepaddle", "numpy"))
    report.conditions = f"{rounds} rounds of {options.steps} steps, {options.limit} under way. {where}."
    report.legend = LEGEND
    report.measured["measured"] = [{"variant": asdict(variant), "runs": some} for variant, some in runs.items()]
    report.begin(*heads, left=("workload", "dtype", "allocator", "method", "gradients", "bars"))
    for row in table:
        report.row(*row.cells().values(), told=False)
    broken = [row.variant for row in table if row.is_broken]
    print(*(f"gradients differ: {variant}" for variant in broken), sep="\n", end="", file=sys.stderr)
    return int(bool(broken))
