"""Jobs in fresh processes, alone or taking turns."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

ROOT = Path(__file__).resolve().parents[2]

K = TypeVar("K")


class WorkerError(RuntimeError):
    """The process of a job failed; the message ends with its standard error."""


@dataclass(frozen=True)
class Job:
    """One process.

    Args:
        title: names it in errors.
        function: ``"module:name"`` of a generator function. Its first ``yield`` says that it is ready; after each it
            waits for its next turn. What it yields and returns is JSON.
        arguments: of the function, by name.
        environment: of the process; None for that of this one.
    """

    title: str
    function: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str] | None = None


class Worker:
    """The process of a job, from when it is ready; leaving the context ends it.

    Raises:
        WorkerError: the process ended before it was ready. :meth:`turn` and :meth:`finish` raise it, too.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.turns", job.function, json.dumps(dict(job.arguments))],
            cwd=ROOT,
            env=job.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self._read()
        except BaseException:
            self.__exit__()
            raise

    def turn(self) -> tuple[str, Any]:
        """Let it go on, and return ``"yield"`` or ``"return"``, and the value."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: reading says how
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._read()

    def finish(self, on_value: Callable[[Any], object] = bool) -> Any:
        """Let it run to its end, and return its result; ``on_value`` gets everything that it yields on the way."""
        while True:
            kind, value = self.turn()
            if kind == "return":
                return value
            on_value(value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process, self._errors:
            self._process.kill()

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

    Raises:
        WorkerError: the process failed.
    """
    with Worker(job) as worker:
        return worker.finish(on_value)


def take_turns(jobs: Mapping[K, Job], alone: Mapping[K, int], rounds: int) -> dict[K, Any]:
    """Let processes live at one time and take turns, every other round backwards, and return their results.

    Turns that are compared are seconds apart, so that a machine whose speed drifts is fair to all.

    Args:
        jobs: started at once, as many at a time as there are processors.
        alone: turns that each makes by itself, before the rounds.
        rounds: in each of which every process makes one turn.

    Raises:
        WorkerError: a process failed.
    """
    with ExitStack() as stack:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            started = pool.map(lambda job: stack.enter_context(Worker(job)), jobs.values())
        workers = dict(zip(jobs, started, strict=True))
        for key, worker in workers.items():
            print(f"\rfirst turns of {key!s:60}", end="", file=sys.stderr, flush=True)
            for _ in range(alone[key]):
                worker.turn()
        for turn in range(rounds):
            for worker in [*workers.values()][:: -1 if turn % 2 else 1]:
                worker.turn()
            print(f"\rround {turn + 1}{'':70}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return {key: worker.finish() for key, worker in workers.items()}


def main(function: str, arguments: str) -> None:
    """Run a job in this process: print what it yields and returns as lines of JSON, and read a line for each turn."""
    module, _, name = function.partition(":")
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # libraries print, too
        job = getattr(import_module(module), name)(**json.loads(arguments))
        while True:
            try:
                value = next(job)
            except StopIteration as end:
                print(json.dumps(["return", end.value]), file=answers)
                return
            print(json.dumps(["yield", value]), file=answers)
            if not sys.stdin.readline():
                return  # its parent has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
