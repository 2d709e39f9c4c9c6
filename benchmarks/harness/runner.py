"""Jobs in fresh processes, alone or taking turns, and calls that take turns in this process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Self, TypeVar

from tensorstash.host.allocator import MMAP_THRESHOLD_BYTES, advised_environment

K = TypeVar("K")
T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
ALLOCATORS = ("default", "advised", "threshold")

_ALLOCATOR_VARIABLES = ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_")


class WorkerError(RuntimeError):
    """The process of a job failed; the message ends with what it wrote to its standard error."""


@dataclass(frozen=True)
class Job:
    """One process.

    Args:
        title: names it in errors.
        function: ``"module:name"`` of a generator function. Its first ``yield`` says that it is ready; after each it
            goes on when it is told to; what it returns is the result. All of this is JSON.
        arguments: of the function, by name.
        environment: of the process.
    """

    title: str
    function: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def environment(*, threads: int, allocator: str = "default") -> dict[str, str]:
    """Return an environment for a process.

    Args:
        threads: for computing.
        allocator: the C library's as it is; what ``python -m tensorstash`` chooses, which leaves alone what is set
            already; or glibc's with a threshold.
    """
    threaded = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if allocator == "advised":
        return advised_environment(threaded)
    plain = {name: value for name, value in threaded.items() if name not in _ALLOCATOR_VARIABLES}
    if allocator == "threshold":
        plain["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD_BYTES)
    return plain


class Worker:
    """The process of a job, from when it is ready; leaving the context ends it.

    Raises:
        WorkerError: the process has ended before it was ready. So do :meth:`turn` and :meth:`finish` if it ends early.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        command = [sys.executable, "-m", "benchmarks.harness.worker", job.function, json.dumps(dict(job.arguments))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=dict(job.environment), stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )
        try:
            self._read()
        except BaseException:
            self.__exit__()
            raise

    def turn(self) -> Any:
        """Let it go on, and return what it yields next."""
        return self._ask()[1]

    def finish(self, on_value: Callable[[Any], object] = bool) -> Any:
        """Let it run to its end, and return its result.

        Args:
            on_value: called with everything that it yields on the way.
        """
        while True:
            kind, value = self._ask()
            if kind == "return":
                return value
            on_value(value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process, self._errors:
            self._process.kill()

    def _ask(self) -> tuple[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: reading says how
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            raise WorkerError(f"{self._job.title}: exit status {status}\n{self._errors.read()[-4000:]}")
        kind, value = json.loads(line)
        return kind, value


def run(job: Job, on_value: Callable[[Any], object] = bool) -> Any:
    """Run a job to its end, alone, and return its result.

    Args:
        job: what to run.
        on_value: called with everything that it yields once it is ready.

    Raises:
        WorkerError: the process failed.
    """
    with Worker(job) as worker:
        return worker.finish(on_value)


def run_together(jobs: Mapping[K, Job], turns: int) -> dict[K, Any]:
    """Run jobs at one time, each in a fresh process, of which one makes a turn while the others wait.

    Turns that are compared are seconds apart, so that a machine whose speed drifts is fair to all; every other round
    goes backwards.

    Args:
        jobs: what to run.
        turns: how often each goes on before it is asked for its result.

    Raises:
        WorkerError: a process failed.
    """
    with ExitStack() as stack:
        workers = {key: stack.enter_context(Worker(job)) for key, job in jobs.items()}
        for turn in range(turns):
            for worker in [*workers.values()][:: -1 if turn % 2 else 1]:
                worker.turn()
        return {key: worker.finish() for key, worker in workers.items()}


def repeat(action: Callable[[], object], *, rounds: int, minutes: float) -> int:
    """Do something once per round, and return how often it was done.

    Args:
        action: a round.
        rounds: most of them.
        minutes: after this time no further round is begun that would not end within it, by the longest so far.
    """
    begun, longest = monotonic(), 0.0
    for number in range(rounds):
        round_begun = monotonic()
        if number and round_begun - begun + longest > minutes * 60:
            print(f"{number} of {rounds} rounds, for want of time", file=sys.stderr)
            return number
        action()
        longest = max(longest, monotonic() - round_begun)
    return rounds


def interleave(calls: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Make calls in turn, round by round, in this process, and return what each has returned."""
    found: dict[K, list[T]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            found[key].append(call())
    return found


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = perf_counter()
    call()
    return perf_counter() - started
