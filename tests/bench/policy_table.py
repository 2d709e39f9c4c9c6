"""Whole training steps on the CPU under each policy, against no hooks and against recomputation, with the bars to meet.

    python tests/bench/policy_table.py                     # GPT and ResNet, fp32 and bf16, and Paddle's GPT
    python tests/bench/policy_table.py --workload gpt --dtype bfloat16 --method compress --rounds 5

Prints a Markdown table and what its columns mean. Exits with 1 if a policy that loses nothing has changed gradients.
"""

import sys

from step_table import Bar, compare
from steps import Variant

POLICIES = (
    "keep",
    "compress",
    "disk_spill",
    "compress | disk_spill",
    "quantize:bits=8",
    "quantize:bits=4",
    "quantize:bits=2",
    "quantize:bits=4 | disk_spill",
    "cast:dtype=bfloat16",
)

BARS = {
    ("float32", "quantize:bits=8"): Bar(1.07, 0.42),
    ("float32", "quantize:bits=4"): Bar(memory=0.31),
    ("float32", "quantize:bits=4 | disk_spill"): Bar(memory=0.15),
    ("bfloat16", "compress"): Bar(beats="either"),
}
"""For the GPT."""


def bar(variant: Variant) -> Bar | None:
    return BARS.get((variant.dtype, variant.method)) if variant.workload == "gpt" else None


if __name__ == "__main__":
    sys.exit(
        compare(
            str(__doc__),
            bar,
            workloads=("gpt", "resnet", "paddle_gpt"),
            dtypes=("float32", "bfloat16"),
            methods=POLICIES,
            threads=(1,),
            minutes=30,
        )
    )
