"""The command line: ``tensorstash VERB ...``, also ``python -m tensorstash VERB ...``.

Each verb is a module of this folder with ``parsed(parser, words)``, which returns the options, and ``main(options)``,
which returns the exit status; its docstring begins with its line in the list.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorstash.errors import TensorStashError
from tensorstash.registry import did_you_mean

_USAGE = """\
usage: tensorstash VERB ...    (or: python -m tensorstash VERB ...)
       python -m tensorstash SCRIPT [ARGUMENT ...]    the same as run
       tensorstash --version
"""

VERBS = ("compare", "doctor", "estimate", "run")
"""Modules of this folder, by name."""


def usage() -> str:
    """Return the verbs and their usage."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {(_module(verb).__doc__ or '').partition(chr(10))[0]}".rstrip() for verb in VERBS]
    return "\n".join((_USAGE, *lines, "", "tensorstash VERB --help tells more."))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb of the command line, by default of this process, and return the exit status.

    Words that begin with no verb are a program to run.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"tensorstash {own_version()}")
        return 0
    if words[0] not in VERBS and not words[0].startswith("-") and not Path(words[0]).exists():
        is_file = words[0].endswith(".py") or "/" in words[0]
        why = "there is no such file" if is_file else f"no verb, and no file; {did_you_mean(words[0], VERBS)}"
        print(f"tensorstash: {words[0]!r}: {why}", file=sys.stderr)
        return 2
    verb, rest = (words[0], words[1:]) if words[0] in VERBS else ("run", words)
    module = _module(verb)
    parser = argparse.ArgumentParser(
        prog=f"tensorstash {verb}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options = module.parsed(parser, rest)
    try:
        status: int = module.main(options)
    except TensorStashError as error:
        print(f"tensorstash {verb}: {error}", file=sys.stderr)
        return 1
    return status


def own_version() -> str:
    """Return the version of the package, or say that it is not installed."""
    try:
        return version("tensorstash")
    except PackageNotFoundError:
        return "(not installed)"


def _module(verb: str) -> Any:
    return import_module(f"tensorstash.cli.{verb}")
