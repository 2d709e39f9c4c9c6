"""Jobs in fresh processes, alone or taking turns."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

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
        environment: of the process.
        package: the checkout whose ``tensorstash`` it imports.
    """

    title: str
    function: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    package: Path = ROOT


class Worker:
    """The process of a job, from when it is ready; leaving the context ends it.

    Raises:
        WorkerError: the process ended before it was ready. :meth:`turn` and :meth:`finish` raise it, too.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        script = str(Path(__file__).with_name("worker.py"))
        command = [sys.executable, script, str(job.package.resolve()), job.function, json.dumps(dict(job.arguments))]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(job.environment),
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

    def turn(self) -> Any:
        """Let it go on, and return the value that it yields next."""
        return self._ask()[1]

    def finish(self, on_value: Callable[[Any], object] = bool) -> Any:
        """Let it run to its end, and return its result; ``on_value`` gets everything that it yields on the way."""
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

    Raises:
        WorkerError: the process failed.
    """
    with Worker(job) as worker:
        return worker.finish(on_value)


class Turns(Generic[K]):
    """Processes that live at one time and take turns; leaving the context ends them.

    Turns that are compared are seconds apart, so that a machine whose speed drifts is fair to all.

    Args:
        jobs: started at once, as many at a time as there are processors.

    Raises:
        WorkerError: a process failed. Every method does so.
    """

    def __init__(self, jobs: Mapping[K, Job]) -> None:
        self._stack = ExitStack()
        self._round = 0
        with self._stack as stack:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                started = pool.map(lambda job: stack.enter_context(Worker(job)), jobs.values())
            self._workers = dict(zip(jobs, started, strict=True))
            self._stack = stack.pop_all()

    def alone(self, key: K, count: int) -> None:
        """Let one process make turns by itself."""
        for turn in range(count):
            self._workers[key].turn()
            print(f"\rturn {turn + 1} of {count}: {key!s:60}", end="", file=sys.stderr, flush=True)

    def rounds(self, count: int) -> None:
        """Let each process make a turn in each round; every other round goes backwards."""
        for _ in range(count):
            for key in [*self._workers][:: -1 if self._round % 2 else 1]:
                self._workers[key].turn()
            self._round += 1
            print(f"\rround {self._round}{'':70}", end="", file=sys.stderr, flush=True)

    def finish(self) -> dict[K, Any]:
        """Let all run to their ends, and return their results."""
        print(file=sys.stderr)
        return {key: worker.finish() for key, worker in self._workers.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
