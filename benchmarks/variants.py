"""What is compared: policies as one line each, and the environment they run in."""

import os
from dataclasses import dataclass

from tensorstash.allocator import advised_environment

NO_POLICY = "none"

POLICIES = (
    "keep",
    "cpu_offload",
    "compress",
    "disk_spill",
    "quantize:bits=8",
    "quantize:bits=4",
    "cast:dtype=bfloat16",
    "quantize:bits=4 | disk_spill",
    "compress | disk_spill",
)

BUDGET = "16 MiB"
"""Bytes under way in each direction; the default suits larger models, whose activations are many times as large."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One process to run.

    Args:
        framework: a key of ``benchmarks.task.BUILDERS``.
        policy: one line for ``tensorstash.parse``, or :data:`NO_POLICY`.
        advised: whether it runs in the environment that ``python -m tensorstash`` gives a program, or in ours.
    """

    framework: str
    policy: str
    advised: bool = True

    def __str__(self) -> str:
        return self.policy if self.advised else f"{self.policy}, allocator as it is"

    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        return advised_environment(os.environ) if self.advised else dict(os.environ)


def advice() -> dict[str, str]:
    """Return what the advised environment has that ours has not."""
    return {name: value for name, value in advised_environment(os.environ).items() if os.environ.get(name) != value}


def variants(frameworks: list[str], policies: list[str]) -> list[Variant]:
    """Return the runs of each framework: no policy first, which the others are compared with, then each policy."""
    runs: list[Variant] = []
    for framework in frameworks:
        runs.append(Variant(framework, NO_POLICY))
        if advice():
            runs.append(Variant(framework, NO_POLICY, advised=False))
        runs += [Variant(framework, policy) for policy in policies]
    return runs
