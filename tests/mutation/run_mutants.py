"""Plants one fault at a time in a copy of the tree, and sees whether the tests named for it notice.

    python tests/mutation/run_mutants.py [--only WORD ...] [--shard 1/2] [--results FILE]

Without a word it runs every mutant of ``mutants_*.py``; with words, those whose file or tests contain one. It prints
what became of each and the score, and fails if a mutant survived that is not argued for, or if one that is argued for
was noticed after all. A mutant whose text is not in its file exactly once is an error: it is to be written anew.
"""

import argparse
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = "tensorstash"

KINDS = (
    "boundary",
    "constant",
    "dropped call",
    "dropped check",
    "dropped lock",
    "dropped release",
    "negation",
    "swapped order",
    "wrong value",
)

TIMEOUT_S = 240.0
"""Longest run of the tests for one mutant, in seconds; one that hangs is noticed."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Args:
        file: end of the path of the file, such as ``"stores/disk/slab.py"``; empty where the text alone says which.
        kind: what sort of mistake it is, one of :data:`KINDS`.
        old: text that is in the file exactly once.
        new: what takes its place.
        tests: files that must notice, the likeliest first; pytest's other arguments, such as ``-k``, too.
        why: for one that nothing can notice: why that does no harm.
    """

    file: str
    kind: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""


def load(pattern: str = "mutants_*.py", lists: Sequence[Path] = ()) -> list[Mutant]:
    """Return every mutant of some lists, or of those beside this file whose name fits a pattern."""
    found: list[Mutant] = []
    for path in lists or sorted(HERE.glob(pattern)):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [Mutant(*row) for row in module.MUTANTS]
    return found


def target(mutant: Mutant, root: Path) -> Path:
    """Return the file that a mutant is planted in.

    Raises:
        LookupError: there is not exactly one such file with its text, exactly once.
    """
    files = [path for path in sorted((root / PACKAGE).rglob("*.py")) if path.as_posix().endswith(mutant.file)]
    counts = {path: path.read_text().count(mutant.old) for path in files}
    holding = [path for path, count in counts.items() if count]
    if len(holding) != 1 or counts[holding[0]] != 1:
        raise LookupError(f"{mutant.file}: {mutant.old!r} is there {sum(counts.values())} times, expected once")
    return holding[0]


def copied_tree(folder: Path) -> Path:
    """Return the root of a copy of the tree."""
    skipped = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "*.egg-info")
    root = folder / "tree"
    shutil.copytree(ROOT, root, ignore=skipped, symlinks=True)
    return root


def run_tests(tests: Sequence[str], root: Path, timeout_s: float) -> tuple[str, str]:
    """Run pytest in a fork of this process; return what came of it, and what it printed.

    A fork, because importing pytest and a framework takes longer than most tests.

    Returns:
        ``"passed"``, ``"failed"``, ``"hung"``, or ``"broken"`` where pytest could not begin.
    """
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            _be_pytest(tests, root, output.fileno())
        status = _wait(pid, timeout_s)
        output.seek(0)
        printed = output.read()
    if status is None:
        return "hung", printed
    if os.WIFSIGNALED(status):
        return "failed", f"ended by signal {os.WTERMSIG(status)}\n{printed}"
    return {0: "passed", 1: "failed", 2: "failed"}.get(os.WEXITSTATUS(status), "broken"), printed


def _be_pytest(tests: Sequence[str], root: Path, output: int) -> None:
    status = 70
    try:
        os.setsid()
        os.chdir(root)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.path[:0] = [str(root)]
        os.environ["PYTHONPATH"] = str(root)
        import pytest

        options = "--strict-markers --import-mode=importlib --doctest-modules"
        arguments = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-o", f"addopts={options}", *tests]
        status = pytest.main(arguments, plugins=[_NoShrinking()])
        assert sys.modules[PACKAGE].__file__ == str(root / PACKAGE / "__init__.py"), "another package was tested"
    except BaseException as error:
        print(repr(error))
        status = 70
    finally:
        sys.stdout.flush()
        os._exit(int(status))


class _NoShrinking:
    """A plugin of pytest: to shrink what Hypothesis has found takes longer than to find it."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", phases=phases, database=None, derandomize=True)
        settings.load_profile("mutants")


def _wait(pid: int, timeout_s: float) -> int | None:
    watched = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([watched], [], [], timeout_s)
    finally:
        os.close(watched)
    _end_group(pid)
    _, status = os.waitpid(pid, 0)
    return status if ended else None


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Planter:
    """Puts mutants into a copy of the tree and takes them out again.

    Args:
        root: of the copy.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        # Compiled files are known by the second of their source: each version has one of its own.
        self._clock = int(time.time())

    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Plant a mutant for the length of one step of a loop."""
        path = target(mutant, self._root)
        text = path.read_text()
        try:
            self._write(path, text.replace(mutant.old, mutant.new))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        self._clock += 10
        os.utime(path, (self._clock, self._clock))


def needs_framework(mutant: Mutant) -> bool:
    """Return whether its tests import PyTorch."""
    return any("torch" in test for test in mutant.tests)


def run(mutants: Sequence[Mutant], results: Path | None) -> int:
    """Run mutants, print what became of them, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="tensorstash-mutants-") as folder:
        root = copied_tree(Path(folder))
        planter = Planter(root)
        import numpy as np  # noqa: F401 - here, so that forks need not import them
        import pytest  # noqa: F401

        rows: list[dict[str, Any]] = []
        sound: dict[str, float] = {}
        for mutant in sorted(mutants, key=needs_framework):
            if needs_framework(mutant):
                import torch  # noqa: F401
            tests = list(dict.fromkeys(mutant.tests))
            for test in tests:
                if test not in sound:
                    sound[test] = _seconds_of_a_sound_run(test, root)
            started = time.monotonic()
            outcome = "passed"
            for _ in planter.planted(mutant):
                for test in tests:
                    if outcome == "passed":
                        outcome, _ = run_tests([test], root, TIMEOUT_S + 2 * sound[test])
            verdict = _verdict(mutant, outcome)
            seconds = round(time.monotonic() - started, 1)
            rows.append({**asdict(mutant), "verdict": verdict, "outcome": outcome, "seconds": seconds})
            if results is not None:
                results.write_text(json.dumps(rows, indent=1))
            hung = " (hung)" if outcome == "hung" else ""
            print(f"{verdict:10} {seconds:5.0f} s  {mutant.file}: {_line(mutant)}{hung}", flush=True)
        return report(rows)


def _seconds_of_a_sound_run(test: str, root: Path) -> float:
    started = time.monotonic()
    outcome, printed = run_tests([test], root, 3 * TIMEOUT_S)
    if outcome != "passed":
        sys.exit(f"without any mutant {test} {outcome}:\n{printed[-3000:]}")
    return time.monotonic() - started


def _verdict(mutant: Mutant, outcome: str) -> str:
    if outcome == "passed":
        return "argued" if mutant.why else "SURVIVED"
    return "NOTICED" if mutant.why else "killed"


def _line(mutant: Mutant) -> str:
    return f"{mutant.kind}: {' '.join(mutant.old.split())[:70]!r} -> {' '.join(mutant.new.split())[:50]!r}"


def report(rows: Sequence[dict[str, Any]]) -> int:
    """Print the score and return the exit status: 0 if every mutant was killed or is argued for."""
    counts = Counter(row["verdict"] for row in rows)
    judged = counts["killed"] + counts["SURVIVED"]
    kinds = Counter(row["kind"] for row in rows)
    print(f"\n{len(rows)} mutants: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    print("kinds: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    print(f"score: {counts['killed']} of {judged}, {100 * counts['killed'] / max(judged, 1):.1f} %")
    return int(counts["SURVIVED"] + counts["NOTICED"] > 0)


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words, one of which a file or test must contain")
    parser.add_argument("--shard", default="1/1", help="one part of the mutants, such as 1/2")
    parser.add_argument("--lists", nargs="*", type=Path, default=[], help="files of mutants; by default all of them")
    parser.add_argument("--results", type=Path, help="a file for the results, as JSON")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.shard.split("/"))
    words = arguments.only
    chosen = [
        m
        for m in load(lists=arguments.lists)
        if not words or any(word in text for word in words for text in (m.file, *m.tests))
    ]
    stale = []
    for mutant in chosen:
        try:
            target(mutant, ROOT)
        except LookupError as error:
            stale.append(str(error))
    if stale:
        sys.exit("mutants to be written anew:\n" + "\n".join(stale))
    return run(chosen[part - 1 :: parts], arguments.results)


if __name__ == "__main__":
    sys.exit(main())
