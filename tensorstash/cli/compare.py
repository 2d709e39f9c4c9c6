"""Run a training script under each policy, and print its peak memory, seconds per step and gradients.

tensorstash compare SCRIPT|-m MODULE [--policy LINE ...] [--budget SIZE] [--steps N] [-- ARGUMENT ...]

Each policy has a fresh process. `none` is the script as it is; a policy runs as under `tensorstash run --policy`. After
N steps of its optimizers the script is ended by SystemExit. Gradients are compared bit by bit at each step, printed
lines one by one, with those of the first policy. A script that sets no seed differs from itself: try `--policy none
--policy none`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tensorstash.cli.program import BUDGET_VARIABLE, RECORD_VARIABLE, Record, arguments_of, refuse_missing
from tensorstash.config.files import POLICY_VARIABLE
from tensorstash.errors import TensorStashError
from tensorstash.host.allocator import advised_environment

NONE = "none"
_MIB = 2**20


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Return the options, and the program with the words behind ``--`` as its arguments."""
    split = words.index("--") if "--" in words else len(words)
    parser.usage = "tensorstash compare SCRIPT|-m MODULE [--policy LINE ...] [--budget SIZE] [--steps N] [-- WORD ...]"
    parser.add_argument("script", nargs="?", help="the training script")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="in place of a script")
    parser.add_argument("--policy", action="append", metavar="LINE", help="repeatable; none and disk_spill by default")
    parser.add_argument("--budget", metavar="SIZE", help="for all policies but none, as of tensorstash run")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="2 or more; the first does not count (5)")
    options = parser.parse_args(words[:split])
    if (options.script is None) == (options.module is None):
        parser.error("no program is named: name a script, or -m MODULE")
    if options.steps < 2:
        parser.error(f"--steps: got {options.steps}, expected 2 or more: the first step does not count")
    refuse_missing(parser, options.script or "-m")
    options.program = [*(("-m", options.module) if options.module else (options.script,)), *words[split + 1 :]]
    return options


def main(options: argparse.Namespace) -> int:
    """Print the table; the status is 1 if a run fails."""
    policies = options.policy or [NONE, "disk_spill"]
    for policy in policies:
        if policy != NONE:
            arguments_of({"--policy": policy, "--budget": options.budget}, ("--policy", "--budget"))
    runs: list[tuple[str, Record]] = []
    for policy in policies:
        print(f"tensorstash: {policy}", file=sys.stderr, flush=True)
        runs.append((policy, run(policy, options)))
    print(table(runs))
    return 0


def run(policy: str, options: argparse.Namespace) -> Record:
    """Run the program under a policy, and return its record; it is an error if it fails or makes no two steps."""
    environment = {k: value for k, value in os.environ.items() if k not in (POLICY_VARIABLE, BUDGET_VARIABLE)}
    if policy != NONE:
        ours = {POLICY_VARIABLE: policy} | ({} if options.budget is None else {BUDGET_VARIABLE: options.budget})
        environment = advised_environment(environment) | ours
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "record.json")
        environment[RECORD_VARIABLE] = f"{options.steps}:{path}"
        command = [sys.executable, "-m", "tensorstash.cli.program", *options.program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TensorStashError(f"{policy}: the program ended with status {done.returncode}\n{done.stderr[-4000:]}")
        record = Record(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Record()
    if len(record.seconds) < 2:
        raise TensorStashError(
            f"{policy}: the program made {len(record.seconds)} steps of an optimizer, expected 2 or more: it has to "
            f"call the step() of an optimizer of PyTorch or PaddlePaddle in its own process"
        )
    record.lines = done.stdout.splitlines()
    return record


def table(runs: Sequence[tuple[str, Record]]) -> str:
    """Return the table; each policy is relative to the first."""
    _, first = runs[0]
    on_device = any(record.device_peak for _, record in runs)
    heads = ["policy", "peak MiB", "of first", *(["device MiB"] if on_device else [])]
    rows = [[*heads, "s/step", "of first", "gradients", "printed lines"]]
    for policy, record in runs:
        steps = list(zip(record.gradients, first.gradients, strict=False))
        apart = next((step for step, (ours, theirs) in enumerate(steps, 1) if ours != theirs), None)
        alike = sum(ours == theirs for ours, theirs in zip(record.lines, first.lines, strict=False))
        time, base = (median(each.seconds[1:]) for each in (record, first))
        device = [f"{record.device_peak / _MIB:.0f}"] if on_device else []
        row = [policy, f"{record.peak / _MIB:.0f}", f"{record.peak / max(first.peak, 1):.2f}", *device]
        row += [f"{time:.3f}", f"{time / base:.2f}", f"differ from step {apart} on" if apart else "equal"]
        rows.append([*row, f"{alike} of {max(len(record.lines), len(first.lines))} equal"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)
