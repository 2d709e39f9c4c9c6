"""All that is measured on an accelerator, in the order of its worth, within half an hour.

    python -m benchmarks gpu --device cuda --directory benchmarks/results
    python -m benchmarks gpu --device sim --small                  # on the simulated device, in a minute

Each part is a command of its own with a limit; its tables go to ``gpu_PART.md``, and its output to ``gpu_PART.log``.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.harness.report import Report, columns

COLUMNS = columns("part | command | seconds:.0f | outcome")

LLAMA = "--llama --length 8192 --width 2048 --depth 16 --vocabulary 128256"
TINY = "--width 64 --depth 2 --heads 2 --vocabulary 64 --length 64 --rounds 1 --steps 1"
PARTS = {
    "doctor": (60, "-m tensorstash doctor", ""),
    "link": (120, "-m benchmarks torch_link --device {device}", "--mib 1"),
    "tests": (300, "-m pytest -q -n 8 -p no:benchmark -p no:cacheprovider -m gpu tests/torch", "--co"),
    "contract": (300, "-m pytest -q -p no:benchmark -p no:cacheprovider tests/device/on_device", "--co"),
    "steps": (560, "-m benchmarks torch_device --device {device} --budget 500", TINY),
    "llama": (300, f"-m benchmarks torch_device --device {{device}} --budget 240 {LLAMA}", TINY),
    "hooks": (120, "-m benchmarks hooks --framework torch --device {device}", "--saves 4 --rounds 2"),
}
"""Limits in seconds, commands, and the options of a small run."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="of any accelerator of PyTorch")
    parser.add_argument("--directory", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--part", action="append", choices=list(PARTS))
    parser.add_argument("--small", action="store_true", help="to see that all of it runs")


def main(options: argparse.Namespace, report: Report) -> bool:
    report.begin(COLUMNS)
    options.directory.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TENSORSTASH_TEST_DEVICE": options.device}
    failed = False
    for part in options.part or PARTS:
        limit_s, command, small = PARTS[part]
        words = command.format(device=options.device).split() + (small.split() if options.small else [])
        if words[1] == "benchmarks":
            words += ["--markdown", str(options.directory / f"gpu_{part}.md")]
        started, outcome = perf_counter(), "done"
        with open(options.directory / f"gpu_{part}.log", "w") as log:
            try:
                done = subprocess.run(
                    [sys.executable, *words], stdout=log, stderr=log, timeout=limit_s, env=environment
                )
                outcome = "done" if done.returncode in (0, 5) else f"exit code {done.returncode}"  # 5: no test of a GPU
            except subprocess.TimeoutExpired:
                outcome = f"cut short after {limit_s} s"
        failed |= outcome != "done"
        report.row([part, " ".join(words), perf_counter() - started, outcome])
    return failed
