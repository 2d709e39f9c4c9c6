"""Run a benchmark: ``python -m benchmarks NAME [options]``; without a name, list them."""

import argparse
import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shlex import join

from benchmarks.harness.report import Report
from benchmarks.harness.turns import WorkerError

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def _purpose(name: str) -> str:
    """Return what a benchmark measures, in one line; imports nothing."""
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0]


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the command line of a benchmark; imports it."""
    module = import_module(f"benchmarks.{name}")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m benchmarks {name}", description=module.__doc__, formatter_class=form)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables and their conditions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.set_defaults(main=module.main)
    module.add_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; progress goes to standard error, the tables to output."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] not in NAMES:
        width = max(map(len, NAMES))
        listing = "\n".join(f"  {name:<{width}}  {_purpose(name)}" for name in NAMES)
        print(f"usage: python -m benchmarks NAME [options]\n\n{listing}")
        return 0 if not words or words[0] in ("-h", "--help") else 2
    name, *rest = words
    options = parser_of(name).parse_args(rest)
    command = f"python -m benchmarks {join(words)}"
    report = Report(_purpose(name).rstrip("."), command, markdown=options.markdown, json=options.json)
    try:
        failed: bool | None = options.main(options, report)
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        report.save()
        print(report)  # what is cut short is shown as far as it got
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
