"""The process of one job: ``worker.py PACKAGE module:function '{"argument": value}'``.

Imports ``tensorstash`` from the checkout PACKAGE, and everything else from its own. Each value that the generator
function yields or returns is printed as a line of JSON, after ``"yield"`` or ``"return"``. Before the function goes on,
a line is read.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path


def main(package: str, function: str, arguments: str) -> None:
    """Run a job."""
    sys.path[0] = package
    found = import_module("tensorstash").__path__[0]
    if Path(found).parent != Path(package).resolve():
        raise SystemExit(f"tensorstash was imported from {found}, expected it in {package}")
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    module, _, name = function.partition(":")
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # libraries print, too
        job = getattr(import_module(module), name)(**json.loads(arguments))
        while True:
            try:
                value = next(job)
            except StopIteration as end:
                print(json.dumps(["return", end.value]), file=answers)
                return
            print(json.dumps(["yield", value]), file=answers)
            if not sys.stdin.readline():
                return  # its parent has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
