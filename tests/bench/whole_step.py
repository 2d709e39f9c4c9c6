"""Whole training steps on the CPU under DiskSpill, against no hooks and against recomputation, with the bars to meet.

    python tests/bench/whole_step.py                       # every workload, 1 and 2 threads, 20 minutes a round
    python tests/bench/whole_step.py --workload gpt --threads 1 --method "quantize:bits=8" --allocator threshold

Prints a Markdown table and what its columns mean. Exits with 1 if gradients are not bitwise those without hooks.
"""

import sys

from step_table import Bar, compare
from steps import WORKLOADS, Variant

SPILL = "disk_spill"

BARS = {
    "gpt": Bar(1.05, 0.28, beats="step", seen=True),
    "gpt_dropout": Bar(1.08, 0.20, beats="step", seen=True),
    "resnet": Bar(1.20, 0.45, beats="step", seen=True),
    "paddle_gpt": Bar(1.10, beats="step", seen=True),
}


def bar(variant: Variant) -> Bar | None:
    return BARS[variant.workload] if variant.method == SPILL else None


if __name__ == "__main__":
    sys.exit(
        compare(
            str(__doc__), bar, workloads=WORKLOADS, dtypes=("float32",), methods=(SPILL,), threads=(1, 2), minutes=12
        )
    )
