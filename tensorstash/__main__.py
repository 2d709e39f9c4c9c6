"""``python -m tensorstash SCRIPT [ARGUMENT ...]``: run a program where freed activations really leave the process.

Starts ``python SCRIPT ...`` (or ``python -m MODULE ...``) again in the environment that
:func:`tensorstash.allocator.advised_environment` gives, and says on standard error what was set. Nothing else changes:
the process is replaced, with its number, standard streams and exit status, and the interpreter gets the options it was
given: ``python -X dev -m tensorstash SCRIPT`` runs ``python -X dev SCRIPT``.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from tensorstash.host.allocator import advised_environment

_NAME = "tensorstash"


def interpreter_options(command: Sequence[str], count: int) -> list[str]:
    """Return the options that the interpreter was given in front of this module's name.

    Args:
        command: as it was typed.
        count: of the arguments behind the name.

    >>> interpreter_options(["python", "-X", "dev", "-Im", "tensorstash", "train.py", "--fast"], 2)
    ['-X', 'dev', '-I']
    """
    options = list(command[1 : len(command) - count])
    if options and options[-1] == _NAME:
        options.pop()
    last = options.pop() if options else ""
    if last.startswith("-") and last.removesuffix(_NAME).endswith("m"):  # alone, or behind options of one letter
        last = last.removesuffix(_NAME)[:-1]
        return [*options, last] if last != "-" else options
    return []  # it was started in another way, such as by its file's name


def text_mode(options: Sequence[str]) -> list[str]:
    """Return the option that keeps the encoding of text as it is here, unless ``options`` or the environment set it.

    In the C locale Python switches to UTF-8, and to a UTF-8 locale in the environment that the program would inherit,
    and so would not switch (PEP 538, PEP 540).
    """
    return ["-X", "utf8"] if sys.flags.utf8_mode and not any("utf8" in option for option in options) else []


def main() -> int:
    """Replace this process by the program that the command line names."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr if not arguments else sys.stdout)
        return 0 if arguments else 2
    environment = advised_environment(os.environ)
    added = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    settings = ", ".join(f"{name}={value}" for name, value in added.items())
    print(f"tensorstash: {settings or 'the allocator is left as it is'}", file=sys.stderr, flush=True)
    options = interpreter_options(sys.orig_argv, len(arguments))
    command = [sys.executable, *text_mode(options), *options, *arguments]
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
