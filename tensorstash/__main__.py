"""``python -m tensorstash SCRIPT [ARGUMENT ...]``: run a program where freed activations really leave the process.

Starts ``python SCRIPT ...`` (or ``python -m MODULE ...``) again in the environment that
:func:`tensorstash.allocator.advised_environment` gives, and says on standard error what was set. Nothing else changes:
the process is replaced, with its number, standard streams and exit status.
"""

import os
import subprocess
import sys

from tensorstash.allocator import advised_environment


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
    command = [sys.executable, *arguments]
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
