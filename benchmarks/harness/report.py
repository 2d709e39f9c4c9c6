"""What a benchmark has found: Markdown tables that read well as they are, with what has to be known to judge them."""

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorstash.cli.comparison import markdown


def machine(packages: Iterable[str]) -> str:
    """Return one line that says where and when this was measured."""
    versions = [f"{package} {_version(package)}" for package in packages]
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processors = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    load = [f"load {os.getloadavg()[0]:.1f}"] if hasattr(os, "getloadavg") else []
    system = [f"Python {platform.python_version()}", f"{platform.system()} {platform.machine()}", *processors[:1]]
    return ", ".join([*versions, *system, f"{os.cpu_count()} cores", *load, datetime.date.today().isoformat()])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


class Report:
    """Rows as they come: each is told on standard error at once, and the files are kept up to date.

    Args:
        title: first line of the Markdown file.
        command: what was asked for.
        markdown: the file of tables, with title, command and conditions.
        json: the file of everything that was measured.

    Attributes:
        conditions: one line: versions, machine, date, and what else a benchmark adds.
        legend: what the columns mean.
        verdict: the last sentence.
        measured: everything, in plain values.
    """

    def __init__(
        self, title: str = "", command: str = "", *, markdown: Path | None = None, json: Path | None = None
    ) -> None:
        self.conditions = machine(("tensorstash", "numpy"))
        self.legend = self.verdict = ""
        self.measured: dict[str, Any] = {}
        self._title, self._command = title, command
        self._markdown, self._json = markdown, json
        self._tables: list[tuple[str, Sequence[str], Collection[str], list[Sequence[str]]]] = []

    def begin(self, *heads: str, left: Collection[str] = (), before: str = "") -> None:
        """Begin a table.

        Args:
            heads: of its columns.
            left: heads of the columns that are aligned to the left.
            before: a text above it.
        """
        self._tables.append((before, heads, left, []))

    def row(self, *cells: str, told: bool = True) -> None:
        """Add a row to the last table.

        Args:
            cells: one for each column.
            told: whether it goes to standard error at once.
        """
        self._tables[-1][3].append(cells)
        if told:
            print(" | ".join(cells), file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        """Write the files that were asked for, as they are so far: what is cut short is not lost."""
        if self._markdown:
            head = f"# {self._title}\n\n`{self._command}`\n\n"
            self._markdown.write_text(f"{head}{self}\n", encoding="utf-8")
        if self._json:
            report = {"title": self._title, "command": self._command, "conditions": self.conditions, **self.measured}
            self._json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        parts: list[str] = []
        for before, heads, left, rows in self._tables:
            parts += [before, markdown(heads, rows, left=tuple(left))] if rows else []
        return "\n\n".join(filter(None, [*parts, f"{self.conditions}\n{self.legend}".rstrip(), self.verdict]))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables and their conditions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
