"""The process of a program that runs under a policy, or is recorded: ``python -m tensorstash.cli.program SCRIPT ...``.

The policy is in the environment. It comes into force when the program has imported a framework, not before: settings
that the program makes first, such as the visible devices, count.
"""

import json
import os
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from tensorstash.api import Stash, stash
from tensorstash.config.files import POLICY_VARIABLE, settings_of
from tensorstash.host.pages import peak_bytes
from tensorstash.policies.route import AUTO
from tensorstash.sizes import budget_of, format_bytes

BUDGET_VARIABLE = "TENSORSTASH_BUDGET"
STATS_VARIABLE = "TENSORSTASH_STATS"
"""The path of the file that gets the statistics, as JSON; without it, one line goes to standard error."""
RECORD_VARIABLE = "TENSORSTASH_RECORD"
"""``STEPS:PATH``: the number of steps after which the program ends, and the file for the record of them."""

_VARIABLES = POLICY_VARIABLE, BUDGET_VARIABLE

FRAMEWORKS = ("torch", "paddle")


class Watch(MetaPathFinder):
    """Calls a function with the name of each framework whose import has ended; the first of ``sys.meta_path``."""

    def __init__(self, on_import: Callable[[str], object]) -> None:
        self._on_import = on_import
        self._waits_for = set(FRAMEWORKS)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Let the other finders find a framework, and have its loader tell when it is done."""
        if fullname not in self._waits_for:
            return None
        self._waits_for.discard(fullname)  # the search below comes here again
        found = find_spec(fullname)
        if found is not None and (loader := found.loader) is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # no trace is left
                execute(module)
                self._on_import(fullname)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


@dataclass
class Record:
    """One run, as its process writes it: of each step the seconds and a digest of all gradients, and peaks in bytes."""

    seconds: list[float] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    peak: int = 0
    device_peak: int = 0
    lines: list[str] = field(default_factory=list)


class Recorder:
    """Writes a record of each step of this process's optimizers to a path, and ends the program after so many."""

    def __init__(self, path: str, steps: int) -> None:
        self._path, self._steps, self._record = Path(path), steps, Record()
        self._framework: Any = None
        self._since = perf_counter()

    def watch(self, framework: str) -> None:
        """Watch the optimizers of a framework."""
        self._framework = import_module(f"tensorstash.cli.frameworks.{framework}")
        self._framework.watch(self._before, self._after)

    def _before(self, gradients: Iterator[bytes]) -> None:
        begun, digest = perf_counter(), sha256()
        for each in gradients:
            digest.update(each)
        self._record.gradients.append(digest.hexdigest())
        self._since += perf_counter() - begun  # the digest is no part of the step

    def _after(self) -> None:
        record = self._record
        record.seconds.append(perf_counter() - self._since)
        record.peak, record.device_peak = peak_bytes(), self._framework.peak_of_device()
        self._path.write_text(json.dumps(asdict(record)), encoding="utf-8")
        if len(record.seconds) >= self._steps:
            raise SystemExit(0)
        self._since = perf_counter()


def run_program(program: Sequence[str]) -> None:
    """Run a path, or ``-m`` and a module, with the arguments behind it, as ``python`` would, in this process."""
    if program[0] == "-m":
        sys.argv = [*program[1:]]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*program]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


def refuse_missing(parser: ArgumentParser, script: str) -> None:
    """End with a message if a script does not exist; ``-m`` is none."""
    if script != "-m" and not os.path.exists(script):
        parser.error(f"there is no file {script!r}")


def report(framework: str, scope: Stash, path: str | None) -> None:
    """Write the statistics of a framework: all to a file, or one line to standard error."""
    stats = scope.stats()
    if path:
        Path(path).write_text(json.dumps(stats.to_dict(), indent=1) + "\n", encoding="utf-8")
    seen, stashed = format_bytes(stats.seen.nbytes), format_bytes(stats.stashed.nbytes)
    told = f"; the rest is in {path}" if path else ""
    print(f"tensorstash: {framework}: stashed {stashed} of {seen} saved{told}", file=sys.stderr, flush=True)


def arguments_of(given: Mapping[str, str | None], names: tuple[str, str] = _VARIABLES) -> dict[str, Any]:
    """Return the arguments of :func:`~tensorstash.stash` out of texts by name; none without a policy and a budget.

    ``names`` are those of the policy and of the budget, by default of the variables.
    """
    policy, budget = (given.get(name) for name in names)
    if not policy and not budget:
        return {}
    found: dict[str, Any] = {"policy": AUTO} if policy in (None, "", AUTO) else {**settings_of(policy, names[0])}
    if budget:
        budget_of(budget, names[1])
        found["budget"] = budget
    return found


def main() -> None:
    """Run the program of the command line as the variables say."""
    recorded = os.environ.get(RECORD_VARIABLE)
    settings = arguments_of(os.environ)
    scopes: dict[str, Stash] = {}
    with ExitStack() as ends:

        def enter(framework: str) -> None:
            if settings:
                scopes[framework] = scope = stash(**settings, framework=framework)
                ends.callback(report, framework, scope, os.environ.get(STATS_VARIABLE))
                ends.enter_context(scope)
            if recorded:
                steps, _, path = recorded.partition(":")
                Recorder(path, int(steps)).watch(framework)

        sys.meta_path.insert(0, Watch(enter))
        run_program(sys.argv[1:])
    if settings and not scopes:
        why = f"the program has imported none of {', '.join(FRAMEWORKS)}"
        print(f"tensorstash: the policy had no effect: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
