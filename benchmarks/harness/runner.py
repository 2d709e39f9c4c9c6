"""Options that benchmarks share, and calls that take turns in one process."""

import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.turns import Job, run
from tensorstash.config import policy_argument

K = TypeVar("K")
T = TypeVar("T")


def policy_line(line: str) -> str:
    """Return a policy as one line of the command line, perhaps with a budget; refuse a line that is none."""
    policy_argument(line.partition("@")[0])
    return line


def alone(function: str, title: str, on_value: Callable[[Any], object], **arguments: Any) -> Any:
    """Run ``"module:name"`` of a benchmark in a fresh process with one thread for computing; see :func:`run`."""
    return run(Job(title, f"benchmarks.{function}", arguments, {**os.environ, "OMP_NUM_THREADS": "1"}), on_value)


def distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return how far an array is from another, relative to the norm of that."""
    norm = float(np.linalg.norm(theirs.ravel()))
    return float(np.linalg.norm((ours - theirs).ravel())) / max(norm, 1e-30)


def interleave(calls: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Make calls in turn, round by round, in this process, and return the results of each."""
    found: dict[K, list[T]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            found[key].append(call())
    return found


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call."""
    started = perf_counter()
    call()
    return perf_counter() - started
