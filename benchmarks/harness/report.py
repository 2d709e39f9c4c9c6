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
    return {head: form for head, _, form in heads}


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
    signs = ["<" if head in left else ">" for head in heads]
    forms = [f"{sign}{width}" for sign, width in zip(signs, widths, strict=True)]
    rule = ["-" * (width + 1) + ("-" if sign == "<" else ":") for sign, width in zip(signs, widths, strict=True)]
    head, *body = (f"| {' | '.join(map(format, row, forms))} |" for row in cells)
    return "\n".join((head, f"|{'|'.join(rule)}|", *body))


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
    """One table: each row is told on standard error at once, and the files, if any, are kept up to date.

    ``measured`` is more than the table shows, in plain values.
    """

    def __init__(
        self, title: str = "", command: str = "", *, markdown: Path | None = None, json: Path | None = None
    ) -> None:
        self.measured: dict[str, Any] = {}
        self._title, self._command = title, command
        self._markdown, self._json = markdown, json
        self._columns: Columns = {}
        self._rows: list[list[Any]] = []
        self._conditions = self._legend = ""

    def begin(self, columns: Columns, legend: str = "", *conditions: str) -> None:
        """Begin the table; the legend says what its columns mean, conditions come beside those of the machine."""
        self._columns, self._legend, self._conditions = columns, legend, ", ".join([*conditions, machine()])

    def row(self, found: Iterable[Any] | Mapping[str, Any]) -> None:
        """Add a row: a value for each column, or values by head."""
        values = [found.get(head) for head in self._columns] if isinstance(found, Mapping) else list(found)
        self._rows.append(values)
        print(" | ".join(self._cells(values)), file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        """Write the files that were asked for, as they are so far: what is cut short is not lost."""
        if self._markdown:
            head = f"# {self._title}\n\n`{self._command}`\n\n"
            self._markdown.write_text(f"{head}{self}\n", encoding="utf-8")
        if self._json:
            rows = [dict(zip(self._columns, row, strict=True)) for row in self._rows]
            head = {"title": self._title, "command": self._command, "conditions": self._conditions, "rows": rows}
            self._json.write_text(json.dumps(head | self.measured, indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        left = tuple(name for name, form in self._columns.items() if not form)
        table = markdown(list(self._columns), [self._cells(row) for row in self._rows], left=left)
        return f"{table}\n\n{self._conditions}\n{self._legend}".rstrip()

    def _cells(self, values: Iterable[Any]) -> list[str]:
        forms = zip(self._columns.values(), values, strict=True)
        return ["" if each is None else each if isinstance(each, str) else format(each, form) for form, each in forms]
