"""Run a program where freed activations really leave the process, and under a policy if you like.

tensorstash run [--policy LINE|FILE] [--stats FILE] [PYTHON OPTION ...] SCRIPT|-m MODULE|-c CODE [ARGUMENT ...]

Starts `python SCRIPT ...` in the environment that tensorstash.allocator.advised_environment gives, and says on
standard error what was set. The process is replaced, with its number, standard streams and exit status; the
interpreter gets the options it was given.

With a policy, or with the variable TENSORSTASH_POLICY, everything that the program's main thread saves follows it, from
the moment that PyTorch or PaddlePaddle is imported: for scripts that cannot be edited. A file (.toml, .json, .yaml) may
also set limits and min_bytes. Where another launcher starts the processes, let it start this one:
`torchrun -m tensorstash run train.py`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tensorstash.cli.program import POLICY_VARIABLE, STATS_VARIABLE
from tensorstash.config.settings import settings_of
from tensorstash.host.allocator import advised_environment

_NAME = "tensorstash"
_OURS = ("--policy", "--stats")


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Return the options in front, and everything else as ``python``, untouched."""
    parser.usage = "tensorstash run [--policy LINE|FILE] [--stats FILE] [PYTHON OPTION ...] SCRIPT [ARGUMENT ...]"
    parser.add_argument("--policy", metavar="LINE|FILE", help="what becomes of each saved tensor")
    parser.add_argument("--stats", metavar="FILE", help="write the statistics, for `tensorstash report FILE`")
    count = 0
    while count < len(words) and words[count].partition("=")[0] in (*_OURS, "-h", "--help"):
        count += 2 if words[count] in _OURS else 1
    options = parser.parse_args(words[:count])
    options.python = list(words[count:])
    if not options.python:
        parser.error("which program? Name a script, or -m MODULE")
    return options


def main(options: argparse.Namespace) -> int:
    """Replace this process by the program."""
    environment = advised_environment(os.environ)
    if options.policy is not None:
        environment[POLICY_VARIABLE] = options.policy
    if options.stats is not None:
        environment[STATS_VARIABLE] = options.stats
    added = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    settings = ", ".join(f"{name}={value}" for name, value in added.items())
    print(f"tensorstash: {settings or 'the allocator is left as it is'}", file=sys.stderr, flush=True)
    arguments = options.python
    if environment.get(POLICY_VARIABLE):
        settings_of(environment[POLICY_VARIABLE], POLICY_VARIABLE)  # a mistake in it is one here, not in the program
        own, program = split(arguments)
        arguments = [*own, "-m", "tensorstash.cli.program", *program]
    given = interpreter_options(sys.orig_argv, len(sys.argv) - 1)
    command = [sys.executable, *text_mode(given), *given, *arguments]
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    return subprocess.run(command, env=environment, check=False).returncode


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the interpreter's options and the program, which begins with a path, ``-m`` or ``-c``.

    Args:
        arguments: behind ``python``, as they were typed.

    >>> split(["-X", "dev", "-Im", "package.train", "--fast"])
    (['-X', 'dev', '-I'], ['-m', 'package.train', '--fast'])
    >>> split(["-OBcprint()", "x"])
    (['-OB'], ['-c', 'print()', 'x'])
    """
    options: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        ending = None if word.startswith("--") else next((i for i, each in enumerate(word) if each in "cmWX"), None)
        if ending is None or word[ending] in "WX":
            options.append(word)
            if word == "--check-hash-based-pycs" or ending == len(word) - 1:
                options += rest[:1]
                del rest[:1]
            continue
        if ending > 1:
            options.append(word[:ending])
        return options, [f"-{word[ending]}", *filter(None, [word[ending + 1 :]]), *rest]
    return options, rest


def interpreter_options(command: Sequence[str], count: int) -> list[str]:
    """Return the options that the interpreter was given in front of this module's name.

    Args:
        command: as it was typed.
        count: of the arguments behind the name.

    >>> interpreter_options(["python", "-X", "dev", "-Im", "tensorstash", "run", "train.py", "--fast"], 3)
    ['-X', 'dev', '-I']
    >>> interpreter_options(["python", "-X", "dev", "/usr/bin/tensorstash", "run", "train.py"], 2)
    ['-X', 'dev']
    """
    options = list(command[1 : len(command) - count])
    if options and options[-1] == _NAME:
        options.pop()
    last = options.pop() if options else ""
    if last.startswith("-") and last.removesuffix(_NAME).endswith("m"):  # alone, or behind options of one letter
        last = last.removesuffix(_NAME)[:-1]
        return [*options, last] if last != "-" else options
    return options  # it was started by its file's name


def text_mode(options: Sequence[str]) -> list[str]:
    """Return the option that keeps the encoding of text as it is here, unless ``options`` or the environment set it.

    In the C locale Python switches to UTF-8, and to a UTF-8 locale in the environment that the program would inherit,
    and so would not switch (PEP 538, PEP 540).
    """
    return ["-X", "utf8"] if sys.flags.utf8_mode and not any("utf8" in option for option in options) else []
