"""The process of one variant of steps.py: a step for each line it reads, and then what it measured, as JSON."""

import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from time import perf_counter, process_time
from typing import Any

from steps import NONE, RECOMPUTE, Effort, Run, Variant

import tensorstash as ts
from benchmarks import memory
from tensorstash.allocator import keep_idle


def policy_scope(variant: Variant, effort: Effort) -> Any:
    if variant.method in (NONE, RECOMPUTE):
        return nullcontext()
    if effort.idle is not None:
        keep_idle(effort.idle)
    policy = ts.parse(variant.method.replace("disk_spill", f"disk_spill:directory={effort.directory}"))
    ahead = effort.limit if variant.reads_ahead else 0
    limits = ts.Limits(in_flight=effort.limit, ahead=ahead, resident=variant.resident_bytes)
    framework = "paddle" if variant.workload.startswith("paddle") else "torch"
    return ts.stash(policy, framework=framework, limits=limits, min_bytes=0 if effort.tiny else "64KiB")


def work(variant: Variant, effort: Effort, say: Callable[[str], object]) -> Run:
    if variant.workload.startswith("paddle"):
        from paddle_workloads import PaddleWorkload as Workload
    else:
        from torch_workloads import TorchWorkload as Workload
    workload = Workload(variant, tiny=effort.tiny)
    scope = policy_scope(variant, effort)
    workload.floor_step()
    gc.collect()
    memory.release_free()
    memory.reset_peak()
    floor = peak = memory.peak_bytes()
    seconds, cpu_seconds = [], []
    say("ready")
    for number, _ in enumerate(sys.stdin):
        memory.reset_peak()
        started, cpu_started = perf_counter(), process_time()
        workload.step(number, scope)
        seconds.append(perf_counter() - started)
        cpu_seconds.append(process_time() - cpu_started)
        peak = max(peak, memory.peak_bytes())
        say("done")
    gradients = hashlib.sha256()
    for array in workload.gradients():
        gradients.update(array.tobytes())
    stats = scope.stats() if isinstance(scope, ts.Stash) else None
    return Run(
        step_s=seconds[1:],
        cpu_s=cpu_seconds[1:],
        activation_bytes=peak - floor,
        stashed_bytes=stats.stashed.nbytes / effort.steps if stats else 0.0,
        gradients=gradients.hexdigest(),
        stats=stats.to_dict() if stats else {},
    )


def main() -> None:
    variant, effort = map(json.loads, sys.argv[1:])
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what libraries print is no answer

        def say(line: str) -> None:
            print(line, file=answers)

        say(json.dumps(asdict(work(Variant(**variant), Effort(**effort), say))))


if __name__ == "__main__":
    main()
