"""Each compiled function beside NumPy.

    python -m benchmarks native --markdown benchmarks/results/native.md

A function works on ``--elements`` elements; its time is the least processor time of ``--rounds`` on one thread, in
which C and NumPy take turns. A hook's time is that of forward and backward of a chain of small PyTorch operations, per
saved tensor, with ``tensorstash.host.native.functions`` and without.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any

import numpy as np

from benchmarks.harness.report import Report, columns
from tensorstash import kernels
from tensorstash.kernels.groups import Groups
from tensorstash.kernels.quantize import section_nbytes

FUNCTIONS = columns("function | NumPy ms:.2f | C ms:.2f | times:.1f")


def calls(table: Any, elements: int) -> dict[str, Callable[[], Any]]:
    """Return calls of the functions that are compiled, by name."""
    values = np.random.default_rng(0).standard_normal(elements, np.float32)
    groups = Groups.of((elements // 128, 128), 128)
    found: dict[str, Callable[[], Any]] = {}
    for bits in (8, 4):
        body = np.empty(sum(section_nbytes("float32", groups, bits)), np.uint8)
        for rounding, seed in (("nearest", None), ("stochastic", 7)):
            name = f"quantize to {bits} bits, {rounding}"
            found[name] = partial(table.quantize, values, body, "float32", groups, bits, seed)
        table.quantize(values, body, "float32", groups, bits, None)
        found[f"dequantize {bits} bits"] = partial(
            table.dequantize, body, np.empty_like(values), "float32", groups, bits
        )
    for dtype in ("float16", "bfloat16"):
        found[f"float32 to {dtype}"] = partial(table.narrow, values, dtype)
        found[f"{dtype} to float32"] = partial(table.widen, table.narrow(values, dtype), dtype)
    return found


def least(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return the least processor time of each of two calls that take turns, in seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, spent in zip((one, other), times, strict=True):
            started = thread_time()
            call()
            spent.append(thread_time() - started)
    return min(times[0]), min(times[1])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--elements", type=int, default=2**20)
    parser.add_argument("--rounds", type=int, default=15)


def main(options: argparse.Namespace, report: Report) -> None:
    report.begin(FUNCTIONS, before=f"{options.elements} elements, one thread, least of {options.rounds}.")
    compiled = calls(kernels.active, options.elements)
    for name, defined in calls(kernels.DEFINED, options.elements).items():
        slow, fast = least(defined, compiled[name], options.rounds)
        report.row((name, 1e3 * slow, 1e3 * fast, slow / fast))
