"""Train a small transformer under each policy: memory, time and gradients, on this machine.

tensorstash bench [--framework torch] [--policy LINE ...] [--rounds N] [--plot FILE] [--depth N] ...

Each run is a process of its own, started as `python -m tensorstash` starts programs; all live at one time and take
turns, step by step. Memory is the peak of a step above model, gradients and libraries: of the accelerator if there is
one, else of the process. Give the sizes of your model: how much a policy costs depends on them.
"""

import argparse
import json
import os
import sys
from typing import Any

from tensorstash.backends.features import FRAMEWORKS, installed
from tensorstash.cli.comparison import (
    LEGEND,
    POLICIES,
    Training,
    Variant,
    compare,
    heads,
    markdown,
    plot,
    rows,
    steps_of,
    variants,
    verdict,
)
from tensorstash.cli.turns import Job, WorkerError, counted
from tensorstash.config import parse
from tensorstash.errors import BackendError
from tensorstash.host.allocator import advised_environment

SIZES = {"batch": 16, "length": 128, "width": 256, "heads": 8, "depth": 6}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--framework", choices=sorted(FRAMEWORKS), help="by default the first that is installed")
    parser.add_argument("--policy", action="append", metavar="LINE", help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps of each that count (default: 5)")
    parser.add_argument("--in-flight", default="16MiB", help="budget in each direction (default: 16MiB)")
    parser.add_argument("--plot", metavar="FILE", help="draw memory and time as bars; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="for programs")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"of the model (default: {size})")


def main(options: argparse.Namespace) -> int:
    """Print one table and a verdict."""
    framework = options.framework or next((name for name in FRAMEWORKS if installed(name)), None)
    if framework is None:
        packages = " or ".join(each.package for each in FRAMEWORKS.values())
        raise BackendError(f"no framework is installed; pip install {packages}")
    for policy in options.policy or ():
        parse(policy)
    compared = variants(options.policy or ("cpu_offload", *POLICIES), advice={})
    training = measure(framework, compared, options)
    if options.plot:
        plot(options.plot, [training])
    if options.json:
        print(json.dumps([{"policy": str(key), **found} for key, found in training.measured.items()], indent=1))
        return 0
    names = list(heads([training]))
    print(markdown(names, list(rows([training])), left=(names[0], names[2])))
    print(f"\n{LEGEND}\n\n{verdict([training])}")
    return 0


def measure(framework: str, compared: list[Variant], options: argparse.Namespace) -> Training:
    """Train all variants.

    Args:
        framework: which one trains.
        compared: no policy comes first.
        options: of the command line.

    Raises:
        BackendError: a process failed; the message ends with what it wrote.
    """
    rounds = max(1, options.rounds)

    def job(variant: Variant, half_bytes: int) -> Job:
        told: dict[str, Any] = {
            "framework": framework,
            "policy": variant.line(half_bytes),
            "is_checkpointed": variant.is_checkpointed,
            "sizes": {name: getattr(options, name) for name in SIZES},
            "steps": variant.untimed + rounds,
            "budget": options.in_flight,
        }
        return Job(str(variant), "tensorstash.cli.bench_worker:train", told, advised_environment(os.environ))

    try:
        measured = compare(compared, job, rounds, counted(steps_of(compared, rounds)))
    except WorkerError as error:
        raise BackendError(str(error)) from error
    finally:
        print(file=sys.stderr)
    reference = measured[compared[0]]["gradients_sha256"]
    for found in measured.values():
        found["gradients"] = "bitwise equal" if found["gradients_sha256"] == reference else "close"
    return Training(f"transformer, {framework}", measured)
