"""Look for what keeps tensorstash from saving memory on this machine, and say what to do about it."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

from tensorstash.backends.features import FRAMEWORKS, installed
from tensorstash.cli import own_version
from tensorstash.cli.machine.checks import Finding, allocator, cores, disks, extension, frameworks
from tensorstash.sizes import parse_bytes

_MARKS = {"good": "ok  ", "note": "note", "bad": "BAD "}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--directory", action="append", default=[], help="to spill to; repeatable")
    parser.add_argument("--size", default="64MiB", help="written to each directory, and read back (default: 64MiB)")
    parser.add_argument("--json", action="store_true", help="for programs")


def main(options: argparse.Namespace) -> int:
    """Print the findings; the status is 1 if something does not work at all."""
    nbytes = parse_bytes(options.size, path="--size")
    found = list(findings(tuple(options.directory), nbytes))
    if options.json:
        print(json.dumps([asdict(each) for each in found], indent=1))
    else:
        print(f"tensorstash {own_version()}, Python {sys.version.split()[0]}, {sys.platform}")
        for each in found:
            print(f"{_MARKS[each.state]}  {each.subject}: {each.text}")
            if each.cure:
                print(f"      -> {each.cure}")
    return 1 if any(each.state == "bad" for each in found) else 0


def findings(directories: tuple[str, ...], nbytes: int) -> Iterator[Finding]:
    """Yield what there is to say, one after the other.

    Args:
        directories: that would be spilled to.
        nbytes: written to each of them, and read back.
    """
    yield from extension()
    yield from allocator()
    yield from cores()
    yield from disks(directories, nbytes=nbytes)
    yield from frameworks()
    for name in FRAMEWORKS:
        if installed(name) is not None:
            yield from devices(name)


def devices(name: str) -> Iterator[Finding]:
    """Yield the accelerators that a framework sees; imports it.

    Args:
        name: of the framework's module.
    """
    try:
        module: Any = import_module(f"tensorstash.cli.frameworks.{name}")
    except ImportError as error:
        yield Finding(f"accelerators of {name}", "bad", f"{name} cannot be imported: {error}", "install it again")
        return
    seen: list[str] = module.accelerators()
    if seen:
        yield Finding(f"accelerators of {name}", "good", ", ".join(seen))
    else:
        yield Finding(
            f"accelerators of {name}",
            "good",
            "none: cpu_offload has nothing to do here; disk_spill, compress and quantize work",
        )
