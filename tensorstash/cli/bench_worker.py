"""The process of one run of ``tensorstash bench``: reads a job from the command line and prints what it measured."""

import gc
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

from tensorstash.api import Stash, stash
from tensorstash.cli import memory
from tensorstash.cli.bench import NO_POLICY
from tensorstash.engine.limits import Limits


def measure(told: Mapping[str, Any]) -> dict[str, Any]:
    """Train as told, and return what it took.

    Args:
        told: what :func:`tensorstash.cli.bench.job` has returned.
    """
    module = import_module(f"tensorstash.cli.frameworks.{told['framework']}")
    job = module.Job(told["sizes"])
    scope = scope_of(told)
    job.backward(job.forward(small=True))  # gradients and libraries are in memory
    job.update()
    gc.collect()
    memory.release_free()
    memory.reset_peak()
    of_device = job.peak()
    peak = of_device or memory.peak_bytes
    floor = peak()
    times, digest, loss = [], "", 0.0
    for _ in range(told["steps"]):
        begun = perf_counter()
        with scope:
            value = job.forward()
        loss = job.backward(value)
        del value
        times.append(perf_counter() - begun)
        digest = digest or hashlib.sha256(b"".join(job.gradients())).hexdigest()
        job.update()
    stats = scope.stats().to_dict() if isinstance(scope, Stash) else None
    return {
        "policy": told["policy"],
        "framework": told["framework"],
        "memory": "accelerator" if of_device else "process",
        "peak_bytes": peak() - floor,
        "step_s": median(times[1:]),
        "loss": loss,
        "gradients": digest,
        "stats": stats,
    }


def scope_of(told: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Return what the forward passes run under: a stash, or nothing."""
    if told["policy"] == NO_POLICY:
        return nullcontext()
    limits = Limits(in_flight=told["budget"], ahead=told["budget"])
    return stash(told["policy"], framework=told["framework"], limits=limits)


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
