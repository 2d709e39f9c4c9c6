"""Run a program where freed activations really leave the process, and under a policy if you like.

tensorstash run [--policy LINE|FILE] [--budget SIZE] [--stats FILE] SCRIPT|-m MODULE [ARGUMENT ...]

Starts `python SCRIPT ...` in the environment that tensorstash.allocator.advised_environment gives, and says on
standard error which variables it set. The process is replaced, with its number, standard streams and exit status;
options of this Python, such as `-X dev`, hold for it, too.

With a policy or a budget, or with the variables TENSORSTASH_POLICY and TENSORSTASH_BUDGET, every tensor that the main
thread of the program saves follows it, from the moment that PyTorch or PaddlePaddle is imported: for scripts that
cannot be edited. A file (.toml, .json, .yaml) may also set limits and min_bytes. Where another launcher starts the
processes, let it start this one: `torchrun -m tensorstash run train.py`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tensorstash.cli.program import BUDGET_VARIABLE, STATS_VARIABLE, arguments_of, refuse_missing
from tensorstash.config.files import POLICY_VARIABLE
from tensorstash.host.allocator import advised_environment

_OURS = {"--policy": POLICY_VARIABLE, "--budget": BUDGET_VARIABLE, "--stats": STATS_VARIABLE}
"""Options, and the variables of the program that they set."""


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Return the options in front, and the rest as ``program``, untouched."""
    parser.usage = "tensorstash run [--policy LINE|FILE] [--budget SIZE] [--stats FILE] SCRIPT|-m MODULE [WORD ...]"
    parser.add_argument("--policy", metavar="LINE|FILE", help="for the saved tensors of the program")
    parser.add_argument("--budget", metavar="SIZE", help="bytes of saved tensors that may stay, such as 6GiB, or auto")
    parser.add_argument("--stats", metavar="FILE", help="write the statistics, as JSON")
    count = 0
    while count < len(words) and words[count].partition("=")[0] in (*_OURS, "-h", "--help"):
        count += 2 if words[count] in _OURS else 1
    if [word.partition("=")[0] for word in words[:count]].count("--policy") > 1:
        parser.error("got --policy twice, expected it once; join the steps by |, or let tensorstash compare run both")
    options = parser.parse_args(words[:count])
    options.program = list(words[count:])
    first = (options.program or [""])[0]
    if not first or options.program == ["-m"]:
        parser.error("no program is named: name a script, or -m MODULE")
    if first == "-c":
        parser.error("got -c in place of a script: write the program into a file, or name a module behind -m")
    if first.startswith("-") and first != "-m":
        parser.error(f"got {first!r} in place of a script; options of Python stand before -m: python {first} -m ...")
    refuse_missing(parser, first)
    return options


def main(options: argparse.Namespace) -> int:
    """Replace this process by the program."""
    arguments_of({"--policy": options.policy, "--budget": options.budget}, ("--policy", "--budget"))
    arguments_of(os.environ)  # a mistake is one here, not in the program
    environment = advised_environment(os.environ)
    given = {variable: getattr(options, option[2:]) for option, variable in _OURS.items()}
    environment |= {variable: value for variable, value in given.items() if value is not None}
    added = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    settings = ", ".join(f"{name}={value}" for name, value in added.items())
    print(f"tensorstash: {settings or 'the allocator is left as it is'}", file=sys.stderr, flush=True)
    through = ["-m", "tensorstash.cli.program"] if arguments_of(environment) else []
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    command = [sys.executable, *flags, *through, *options.program]
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    return subprocess.run(command, env=environment, check=False).returncode
