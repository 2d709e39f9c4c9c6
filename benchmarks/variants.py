"""What is compared: policies as one line each, and the allocator setting they run under."""

import os
import platform
from dataclasses import dataclass

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

MMAP_THRESHOLD_BYTES = 1 << 20
"""Blocks from this size on go back to the system when freed; by default glibc raises it to 32 MiB as it runs."""

BUDGET = "16 MiB"
"""Bytes under way in each direction; the default suits larger models, whose activations are many times as large."""

ON_GLIBC = platform.libc_ver()[0] == "glibc"


@dataclass(frozen=True, slots=True)
class Variant:
    """One process to run.

    Args:
        framework: a key of ``benchmarks.task.BUILDERS``.
        policy: one line for ``tensorstash.parse``, or :data:`NO_POLICY`.
        tuned: whether glibc's mmap threshold is fixed at :data:`MMAP_THRESHOLD_BYTES`.
    """

    framework: str
    policy: str
    tuned: bool

    def __str__(self) -> str:
        return self.policy if self.tuned == ON_GLIBC else f"{self.policy}, allocator as it is"

    def environment(self) -> dict[str, str]:
        """Return the environment of the process: ours, with the threshold set or not."""
        environment = {name: value for name, value in os.environ.items() if name != "MALLOC_MMAP_THRESHOLD_"}
        if self.tuned:
            environment["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD_BYTES)
        return environment


def variants(frameworks: list[str], policies: list[str]) -> list[Variant]:
    """Return the runs of each framework: no policy first, which the others are compared with, then each policy."""
    runs: list[Variant] = []
    for framework in frameworks:
        runs.append(Variant(framework, NO_POLICY, tuned=ON_GLIBC))
        if ON_GLIBC:
            runs.append(Variant(framework, NO_POLICY, tuned=False))
        runs += [Variant(framework, policy, tuned=ON_GLIBC) for policy in policies]
    return runs
