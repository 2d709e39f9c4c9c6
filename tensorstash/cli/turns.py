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
from itertools import count
from typing import Any, Generic, Self, TypeVar

K = TypeVar("K")


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
        folder: where it runs; None for here.
    """

    title: str
    function: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: str | os.PathLike[str] | None = None


class Worker:
    """The process of a job, from when it is ready; leaving the context ends it.

    Raises:
        WorkerError: the process has ended before it was ready. So do :meth:`turn` and :meth:`finish` if it ends early.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        command = [sys.executable, "-m", "tensorstash.cli.worker", job.function, json.dumps(dict(job.arguments))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=job.folder, env=dict(job.environment), stdin=pipe, stdout=pipe, stderr=self._errors, text=True
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


def counted(total: int) -> Callable[[object], None]:
    """Return what says on standard error, after each turn, how many of all are over, and whose the last was."""
    turns = count(1)

    def tell(key: object) -> None:
        text = f"{next(turns)} of {total} steps: {key}"
        print(f"\r{text:60}", end="", file=sys.stderr, flush=True)

    return tell


class Turns(Generic[K]):
    """Processes that live at one time, of which one makes a turn while the others wait; leaving the context ends them.

    Turns that are compared are seconds apart, so that a machine whose speed drifts is fair to all.

    Args:
        on_turn: called after each turn with whose it was.

    Raises:
        WorkerError: a process failed. Every method does so.
    """

    def __init__(self, on_turn: Callable[[K], object] = bool) -> None:
        self._on_turn = on_turn
        self._workers: dict[K, Worker] = {}
        self._stack = ExitStack()
        self._round = 0

    def start(self, jobs: Mapping[K, Job]) -> None:
        """Start processes, as many at a time as there are processors."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            started = pool.map(lambda job: self._stack.enter_context(Worker(job)), jobs.values())
        self._workers.update(zip(jobs, started, strict=True))

    def alone(self, key: K, count: int = 1) -> Any:
        """Let one of them make turns by itself, and return what the last one yields."""
        value = None
        for _ in range(count):
            value = self._workers[key].turn()
            self._on_turn(key)
        return value

    def rounds(self, count: int) -> None:
        """Let each make a turn in each round; every other round goes backwards."""
        for _ in range(count):
            for key in [*self._workers][:: -1 if self._round % 2 else 1]:
                self.alone(key)
            self._round += 1

    def finish(self) -> dict[K, Any]:
        """Let all run to their ends, and return their results."""
        return {key: worker.finish() for key, worker in self._workers.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
