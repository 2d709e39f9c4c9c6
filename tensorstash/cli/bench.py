"""Train a small transformer under each policy: memory, time and gradients, on this machine.

tensorstash bench [--framework torch] [--policy LINE ...] [--steps N] [--depth N] ...

Each run is a process of its own, started as `python -m tensorstash` starts programs. Memory is the peak of a step above
model, gradients and libraries: of the accelerator if there is one, else of the process. Give the sizes of your model:
how much a policy costs depends on them.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tensorstash.backends.features import FRAMEWORKS, installed
from tensorstash.config import parse
from tensorstash.errors import BackendError
from tensorstash.host.allocator import advised_environment
from tensorstash.sizes import format_bytes

NO_POLICY = "none"
POLICIES = ("keep", "cpu_offload", "compress", "disk_spill", "compress | disk_spill", "quantize:bits=8")
SIZES = {"batch": 16, "length": 128, "width": 256, "heads": 8, "depth": 6}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--framework", choices=sorted(FRAMEWORKS), help="by default the first that is installed")
    parser.add_argument("--policy", action="append", metavar="LINE", help="only this one; repeatable")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="of each run, 2 or more (default: 5)")
    parser.add_argument("--in-flight", default="16MiB", help="budget in each direction (default: 16MiB)")
    parser.add_argument("--json", action="store_true", help="for programs")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"of the model (default: {size})")


def main(options: argparse.Namespace) -> int:
    """Print one row for each run, as it comes."""
    framework = options.framework or next((name for name in FRAMEWORKS if installed(name)), None)
    if framework is None:
        packages = " or ".join(each.package for each in FRAMEWORKS.values())
        raise BackendError(f"no framework is installed; pip install {packages}")
    policies = [NO_POLICY, *(options.policy or POLICIES)]
    jobs = [job(framework, policy, options) for policy in policies]
    if not options.json:
        print(f"{'policy':24}  {'memory':>9}  {'ratio':>5}  {'step':>8}  {'ratio':>5}  gradients", flush=True)
    rows: list[dict[str, Any]] = []
    for each in jobs:
        rows.append(run(each))
        if not options.json:
            print(line(rows[-1], rows[0]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))
    return 0


def job(framework: str, policy: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a process is told.

    Args:
        framework: which one trains.
        policy: one line, or :data:`NO_POLICY`.
        options: of the command line.

    Raises:
        ConfigError: the line describes no policy.
    """
    if policy != NO_POLICY:
        parse(policy)
    sizes = {name: getattr(options, name) for name in SIZES}
    return {
        "framework": framework,
        "policy": policy,
        "sizes": sizes,
        "steps": max(2, options.steps),
        "budget": options.in_flight,
    }


def run(told: Mapping[str, Any]) -> dict[str, Any]:
    """Run a job in a process of its own, and return what it has measured.

    Args:
        told: what :func:`job` has returned.

    Raises:
        BackendError: the process failed; the message ends with what it wrote.
    """
    command = [sys.executable, "-m", "tensorstash.cli.bench_worker", json.dumps(told)]
    done = subprocess.run(command, env=advised_environment(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{told['policy']}: the process ended with {done.returncode}\n{done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def line(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """Return a row of the table; ratios are to the first one."""
    memory = row["peak_bytes"] / max(baseline["peak_bytes"], 1)
    step = row["step_s"] / baseline["step_s"]
    is_equal = row["gradients"] == baseline["gradients"]
    gradients = "the reference" if row is baseline else "bitwise equal" if is_equal else "close"
    return (
        f"{row['policy']:24}  {format_bytes(row['peak_bytes']):>9}  {memory:>5.2f}  {row['step_s'] * 1e3:>5.0f} ms  "
        f"{step:>5.2f}  {gradients}"
    )
