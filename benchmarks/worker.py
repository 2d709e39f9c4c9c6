"""One training under one policy in a process of its own; prints one JSON object per line.

A line per step, with its number and loss, then one with the measurements.
"""

import argparse
import gc
import json
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import tensorstash as ts
from benchmarks import gradients, memory
from benchmarks.task import BUILDERS, build
from benchmarks.variants import BUDGET, NO_POLICY

DISTRIBUTIONS = {"torch": "torch", "paddle": "paddlepaddle"}


def main() -> None:
    """Run the training that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=sorted(BUILDERS), required=True)
    parser.add_argument("--policy", required=True, help="a policy as one line, or 'none'")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--gradients", type=Path, required=True, help="where the first step's gradients go (.npz)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()

    scope: AbstractContextManager[Any] = nullcontext()
    task = build(options.framework, quick=options.quick)
    if options.policy != NO_POLICY:
        limits = ts.Limits(in_flight=BUDGET, ahead=BUDGET)
        scope = ts.stash(ts.parse(options.policy), framework=options.framework, limits=limits)
    task.warm_up()
    gc.collect()
    memory.release_free()
    memory.reset_peak()
    floor = peak = memory.peak_bytes()
    seconds: list[float] = []
    for step in range(options.steps):
        memory.reset_peak()
        started = perf_counter()
        with scope:
            loss = task.forward(step)
        value = task.backward(loss)
        del loss
        passed = perf_counter()
        peak = max(peak, memory.peak_bytes())
        if step == 0:
            digest = gradients.save(options.gradients, task.gradients())
        resumed = perf_counter()
        task.update()
        seconds.append(passed - started + perf_counter() - resumed)
        print(json.dumps({"step": step, "loss": value}), flush=True)
    measured = {
        "floor_bytes": floor,
        "peak_bytes": peak,
        "step_seconds": seconds,
        "final_loss": value,
        "gradients_sha256": digest,
        "version": version(DISTRIBUTIONS[options.framework]),
        "stats": scope.stats().to_dict() if isinstance(scope, ts.Stash) else None,
    }
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
