"""What benchmarks are told; their jobs, and calls that take turns in this process."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.bare_disk import BARE_DISK
from tensorstash.cli.turns import Job, run
from tensorstash.config import parse
from tensorstash.errors import TensorStashError
from tensorstash.host.allocator import MMAP_THRESHOLD_BYTES, advised_environment

K = TypeVar("K")
T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
ALLOCATORS = ("default", "advised", "threshold")


def policy_line(line: str) -> str:
    """Return a policy as one line of the command line; refuse what is none, but for a share that a bare disk moves."""
    try:
        if not line.startswith(BARE_DISK):
            parse(line)
    except TensorStashError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return line


def environment(*, threads: int, allocator: str = "default") -> dict[str, str]:
    """Return an environment with threads for computing, and the allocator as it is, as advised, or with a threshold."""
    threaded = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if allocator == "advised":
        return advised_environment(threaded)
    plain = {name: value for name, value in threaded.items() if name not in ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_")}
    if allocator == "threshold":
        plain["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD_BYTES)
    return plain


def advice() -> dict[str, str]:
    """Return what the environment that ``python -m tensorstash`` gives a program has, and ours has not."""
    return {name: value for name, value in advised_environment(os.environ).items() if os.environ.get(name) != value}


def alone(function: str, title: str, on_value: Callable[[Any], object], **arguments: Any) -> Any:
    """Run ``"module:name"`` of a benchmark in a fresh process with one thread for computing; see :func:`run`."""
    return run(Job(title, f"benchmarks.{function}", arguments, environment(threads=1), ROOT), on_value)


def distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return how far an array is from another, relative to the norm of that."""
    norm = float(np.linalg.norm(theirs.ravel()))
    return float(np.linalg.norm((ours - theirs).ravel())) / max(norm, 1e-30)


def interleave(calls: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Make calls in turn, round by round, in this process, and return what each has returned."""
    found: dict[K, list[T]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            found[key].append(call())
    return found


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    return spent(call)[0]


def spent(call: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call takes, and the processor time of all threads meanwhile, in seconds."""
    started, cpu_started = perf_counter(), process_time()
    call()
    return perf_counter() - started, process_time() - cpu_started
