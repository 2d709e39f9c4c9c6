"""What a benchmark has found: Markdown tables that read well as they are, with what has to be known to judge them."""

import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "paddlepaddle", "transformers", "numpy", "zstandard", "tensorstash")

Columns = Mapping[str, str]
"""The columns of a table: heads, and how a value is written (:func:`format`); text, to the left, where that is empty.
What is None stays empty, and text is written as it is."""


def columns(text: str) -> Columns:
    """Read the columns of a table: heads with vertical bars between them, each with its format after a colon.

    >>> columns("policy | step s:.3f")
    {'policy': '', 'step s': '.3f'}
    """
    heads = (part.strip().partition(":") for part in text.split("|"))
    found: dict[str, str] = {}
    for head, _, form in heads:
        found[head if head not in found else f"{head} "] = form  # JSON names each once
    return found


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> str:
    """Return a Markdown table whose columns are aligned in the text too.

    Vertical bars in cells are escaped; the columns ``left`` are aligned to the left.

    >>> print(markdown(["policy", "ratio"], [["a | b", "0.5"]], left=["policy"]))
    | policy | ratio |
    |--------|------:|
    | a \\| b |   0.5 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_left = [head in left for head in heads]
    rule = [
        "-" * (width + 2) if plain else "-" * (width + 1) + ":" for width, plain in zip(widths, is_left, strict=True)
    ]
    head, *body = (_line(row, widths, is_left) for row in cells)
    return "\n".join((head, f"|{'|'.join(rule)}|", *body))


def _line(cells: Sequence[str], widths: Sequence[int], is_left: Sequence[bool]) -> str:
    columns = zip(cells, widths, is_left, strict=True)
    return f"| {' | '.join(f'{cell:<{width}}' if left else f'{cell:>{width}}' for cell, width, left in columns)} |"


def machine() -> str:
    """Return one line that says where and when this was measured."""
    known = {each.name.lower(): each.version for each in distributions()}
    cpuinfo = Path("/proc/cpuinfo")
    processors = re.findall(r"model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    found = [f"{package} {known[package]}" for package in PACKAGES if package in known]
    found += [f"Python {platform.python_version()}", f"{platform.system()} {platform.machine()}", *processors[:1]]
    load = [f"load {os.getloadavg()[0]:.1f}"] if hasattr(os, "getloadavg") else []
    return ", ".join([*found, f"{os.cpu_count()} cores", *load, datetime.date.today().isoformat()])


class Report:
    """Rows as they come: each is told on standard error at once, and the files, if any, are kept up to date.

    A benchmark sets ``conditions``, one line with versions, machine and date; ``legend``, what the columns mean;
    ``verdict``, the last sentence; and ``measured``, more than the tables show, in plain values.
    """

    def __init__(
        self, title: str = "", command: str = "", *, markdown: Path | None = None, json: Path | None = None
    ) -> None:
        self.conditions = machine()
        self.legend = self.verdict = ""
        self.measured: dict[str, Any] = {}
        self._title, self._command = title, command
        self._markdown, self._json = markdown, json
        self._tables: list[tuple[str, Columns, list[list[Any]]]] = []

    def begin(self, columns: Columns, before: str = "") -> None:
        """Begin a table, below a text."""
        self._tables.append((before, columns, []))

    def row(self, found: Iterable[Any] | Mapping[str, Any]) -> None:
        """Add a row to the last table: a value for each column, or values by head."""
        _, columns, rows = self._tables[-1]
        values = [found.get(head) for head in columns] if isinstance(found, Mapping) else list(found)
        rows.append(values)
        print(" | ".join(_cells(columns, values)), file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        """Write the files that were asked for, as they are so far: what is cut short is not lost."""
        if self._markdown:
            head = f"# {self._title}\n\n`{self._command}`\n\n"
            self._markdown.write_text(f"{head}{self}\n", encoding="utf-8")
        if self._json:
            rows = [dict(zip(columns, row, strict=True)) for _, columns, rows in self._tables for row in rows]
            head = {"title": self._title, "command": self._command, "conditions": self.conditions, "rows": rows}
            self._json.write_text(json.dumps(head | self.measured, indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        parts: list[str] = []
        for before, columns, rows in self._tables:
            left = tuple(name for name, form in columns.items() if not form)
            cells = [_cells(columns, row) for row in rows]
            parts += [before, markdown(list(columns), cells, left=left)] if rows else []
        return "\n\n".join(filter(None, [*parts, f"{self.conditions}\n{self.legend}".rstrip(), self.verdict]))


def _cells(columns: Columns, values: Iterable[Any]) -> list[str]:
    pairs = zip(columns.values(), values, strict=True)
    return ["" if value is None else value if isinstance(value, str) else format(value, form) for form, value in pairs]
