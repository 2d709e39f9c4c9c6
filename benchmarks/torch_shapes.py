"""Steps on a device whose lengths vary: peak, time, page-locked memory and host waits.

    python -m benchmarks torch_shapes --device cuda

Programs run a GPT: with one length, with random lengths, with a stash for each step, and with a large head. Newly
locked is the host memory that was page-locked from the third step on, by the bytes stashed in these steps. Waits count
how often a step makes the host wait for the device, which CUDA alone tells.
"""

import argparse
import random
import warnings
from functools import partial
from statistics import median
from typing import Any

import torch

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.torch_accelerator import Accelerator, accelerator_named
from benchmarks.torch_device import Bench, Method

POLICIES = ("cpu_offload", "recompute | cpu_offload")
PROGRAMS = ("one length", "random lengths", "a stash per step", "a large head")
COLUMNS = columns("program | policy | peak MiB:.1f | of none:.3f | step of none's:.3f | newly locked:.3f | waits:>")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="of any accelerator of PyTorch")
    sizes = {"length": 4096, "width": 2048, "depth": 8, "batch": 1, "heads": 16, "vocabulary": 32_000, "steps": 12}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)


def waits(accelerator: Accelerator, call: Any) -> str:
    """Return how often a call makes the host wait for the device."""
    if accelerator.device.type != "cuda":
        return ""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return str(sum("synchroniz" in str(each.message) for each in found))


def _same(session: Any) -> Any:
    return lambda: session


def run(options: argparse.Namespace, accelerator: Accelerator, program: str, policy: str | None) -> dict[str, Any]:
    """Train some steps; return their peaks, seconds, waits, and the page-locked share."""
    sizes = argparse.Namespace(**vars(options))
    sizes.vocabulary *= 4 if program == "a large head" else 1
    bench, lengths = Bench(sizes, options.length, accelerator), random.Random(0)
    plain = Method("none", bench.blocks, "", accelerator.device.type)
    whole = bench.batch
    seconds, peaks, stashed, locked = [], [], [0], [0]
    session: Any = None
    for _ in range(options.steps):
        length = lengths.randint(options.length // 2, options.length) if program == "random lengths" else options.length
        bench.batch = whole[:, : length + 1]
        if policy is not None and (session is None or program == "a stash per step"):
            before = stashed[-1] if session is not None else 0
            session = ts.stash(policy, framework="torch")
        else:
            before = 0
        plain.scope = _same(session) if session is not None else plain.scope
        spent, peak = bench.timed(plain)
        seconds.append(spent)
        peaks.append(peak)
        if session is not None:
            stats = session.stats()
            stashed.append(before + stats.stashed.nbytes)
            locked.append(max(locked[-1], stats.pinned_bytes))
    share = (locked[-1] - locked[3]) / max(stashed[-1] - stashed[3], 1) if session is not None else None
    return {
        "peak": max(peaks),
        "seconds": seconds,
        "newly locked": share,
        "waits": waits(accelerator, partial(bench.step, plain)),
    }


def main(options: argparse.Namespace, report: Report) -> None:
    accelerator = accelerator_named(options.device)
    report.conditions = f"{accelerator.name}, {report.conditions}"
    report.begin(COLUMNS)
    for program in PROGRAMS:
        none = run(options, accelerator, program, None)
        for policy in (None, *POLICIES):
            found = none if policy is None else run(options, accelerator, program, policy)
            ratio = median(ours / theirs for ours, theirs in zip(found["seconds"], none["seconds"], strict=True))
            peak, least = found["peak"], max(none["peak"], 1)
            report.row(
                [program, policy or "none", peak / 2**20, peak / least, ratio, found["newly locked"], found["waits"]]
            )
            accelerator.clear()
