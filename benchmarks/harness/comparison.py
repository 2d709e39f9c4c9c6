"""Steps of a variant beside those of others: figures, their ratios, and the bars they have to meet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import tensorstash as ts
from benchmarks.harness.training import NO_POLICY

NONE, CHECKPOINT = NO_POLICY, "checkpoint"
"""Methods that are no policy: no hooks, and what frameworks offer, which computes each block again in backward."""

LEAST_SEEN = 0.7
"""Part of the removed bytes that has to be missing from resident memory."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What one process does.

    Args:
        workload: what is trained, by name.
        method: ``"none"``, ``"checkpoint"``, or a policy as one line.
        allocator: one of ``ALLOCATORS``.
        threads: for computing.
        dtype: of weights and activations.
        resident_bytes: bytes that the policy may leave where they are.
    """

    workload: str
    method: str = NONE
    allocator: str = "advised"
    threads: int = 1
    dtype: str = "float32"
    resident_bytes: int = 0

    @property
    def is_policy(self) -> bool:
        return self.method not in (NONE, CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Bar:
    """What a policy may cost at most.

    Args:
        step: duration of a step, relative to training without hooks.
        memory: of activations, resident, relative to training without hooks.
        cpu: processor time of a step, relative to training without hooks.
        beats: ``"step"`` if a step has to be faster than checkpoints; ``"either"`` if one of step and memory has to be
            better than with checkpoints, and the other not worse; ``"both"`` if both have to be better.
        seen: whether at least :data:`LEAST_SEEN` of what was removed has to be missing from resident memory.
    """

    step: float | None = None
    memory: float | None = None
    cpu: float | None = None
    beats: str = ""
    seen: bool = False


Bars = Callable[[Variant], Bar | None]


Run = Mapping[str, Any]
"""What :func:`benchmarks.harness.training.train` reported."""

Runs = dict[Variant, list[Run]]
Figure = Callable[[Run], Sequence[float]]


def step_s(run: Run) -> Sequence[float]:
    """Return the duration of each step but the first, in seconds."""
    return run["step_s"][1:]


def cpu_s(run: Run) -> Sequence[float]:
    """Return processor times: they say more than durations on a machine that others use."""
    return run["cpu_s"][1:]


def activation_bytes(run: Run) -> Sequence[float]:
    """Return the peak of resident memory above libraries, model, gradients and optimizer state."""
    return (run["activation_bytes"],)


def middle(figure: Figure, runs: Sequence[Run]) -> float:
    """Return the median of a figure over all rounds."""
    return median(value for run in runs for value in figure(run))


def ratio(figure: Figure, runs: Sequence[Run], base: Sequence[Run]) -> float:
    """Return the median of a figure relative to what another variant had in the same step of the same round."""
    pairs = ((figure(ours), figure(theirs)) for ours, theirs in zip(runs, base, strict=True))
    return median(our / their for pair in pairs for our, their in zip(*pair, strict=True))


@dataclass(frozen=True, slots=True)
class Row:
    """One variant beside no hooks, under the default allocator and under its own setting, and beside checkpoints."""

    variant: Variant
    runs: Sequence[Run]
    default: Sequence[Run]
    alike: Sequence[Run]
    checkpoint: Sequence[Run]
    bar: Bar | None

    def cells(self) -> Mapping[str, str]:
        """Return the text of each column, by its head."""
        v, missed = self.variant, ", ".join(self.missed())
        return {
            "workload": v.workload,
            "dtype": v.dtype,
            "threads": str(v.threads),
            "allocator": v.allocator,
            "method": v.method,
            "resident MiB": f"{v.resident_bytes / 2**20:.0f}" if v.is_policy else "",
            "step s": f"{middle(step_s, self.runs):.3f}",
            "step of default": self._ratio(step_s, self.default),
            "of same": self._ratio(step_s, self.alike),
            "CPU of same": self._ratio(cpu_s, self.alike),
            "activations MiB": f"{middle(activation_bytes, self.runs) / 2**20:.0f}",
            "memory of default": self._ratio(activation_bytes, self.default),
            "of same ": self._ratio(activation_bytes, self.alike),
            "checkpoint": ", ".join(self._ratio(figure, self.checkpoint) for figure in (step_s, activation_bytes)),
            "seen": f"{self.seen:.2f}" if any(run["stashed_bytes"] for run in self.runs) else "",
            "gradients": ("bitwise" if self.exact else "differ") if v.is_policy else "",
            "bars": "" if self.bar is None else f"missed: {missed}" if missed else "met",
        }

    def _ratio(self, figure: Figure, base: Sequence[Run]) -> str:
        return f"{ratio(figure, self.runs, base):.3f}"

    @property
    def exact(self) -> bool:
        """Whether gradients are bitwise those of training without hooks."""
        return len({run["gradients_sha256"] for run in (*self.runs, *self.default)}) == 1

    @property
    def is_broken(self) -> bool:
        """Whether gradients differ although the policy loses nothing."""
        if not self.variant.is_policy or self.exact:
            return False
        return all(codec.lossless for plan in ts.parse(self.variant.method).alternatives() for codec in plan.codecs)

    @property
    def seen(self) -> float:
        return median(
            (activation_bytes(theirs)[0] - activation_bytes(ours)[0])
            / max(ours["stashed_bytes"] - self.variant.resident_bytes, 1)
            for ours, theirs in zip(self.runs, self.alike, strict=True)
        )

    def missed(self) -> Iterator[str]:
        """Yield the bars that are not met."""
        bar = self.bar or Bar()
        bounds = (("step", step_s, bar.step), ("memory", activation_bytes, bar.memory), ("CPU", cpu_s, bar.cpu))
        for name, figure, most in bounds:
            if most is not None and max(ratio(figure, self.runs, base) for base in (self.default, self.alike)) > most:
                yield f"{name} > {most}"
        step, memory = (ratio(figure, self.runs, self.checkpoint) for figure in (step_s, activation_bytes))
        beaten = {
            "": True,
            "step": step < 1,
            "both": max(step, memory) < 1,
            "either": max(step, memory) <= 1 and step != memory,
        }
        if not beaten[bar.beats]:
            yield "checkpoints are better"
        if bar.seen and self.seen < LEAST_SEEN:
            yield f"seen < {LEAST_SEEN}"


def rows(runs: Runs, bars: Bars) -> Iterator[Row]:
    """Yield the lines of the table."""
    for variant, some in runs.items():
        none, checkpoint = (replace(variant, method=method, resident_bytes=0) for method in (NONE, CHECKPOINT))
        default = replace(none, allocator="default")
        yield Row(variant, some, runs[default], runs[none], runs.get(checkpoint, runs[none]), bars(variant))
