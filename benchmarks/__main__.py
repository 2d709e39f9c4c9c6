"""Run a benchmark: ``python -m benchmarks NAME [options]``; without a name, list them."""

import argparse
import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shlex import join

from benchmarks.harness.report import Report, add_options
from tensorstash.cli.turns import WorkerError

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def listing() -> str:
    """Return a line for each benchmark; imports none of them."""
    width = max(map(len, NAMES))
    return "\n".join(f"  {name:<{width}}  {_purpose(name)}" for name in NAMES)


def _purpose(name: str) -> str:
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; progress goes to standard error, the tables to output."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] not in NAMES:
        print(f"usage: python -m benchmarks NAME [options]\n\n{listing()}")
        return 0 if not words or words[0] in ("-h", "--help") else 2
    name, *rest = words
    module = import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    module.add_options(parser)
    options = parser.parse_args(rest)
    command = f"python -m benchmarks {join(words)}"
    report = Report(_purpose(name).rstrip("."), command, markdown=options.markdown, json=options.json)
    try:
        status: int = module.main(options, report)
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        report.save()
        print(report)  # what is cut short is shown as far as it got
    return status


if __name__ == "__main__":
    sys.exit(main())
