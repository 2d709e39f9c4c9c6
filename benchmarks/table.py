"""The measurements as one table, in Markdown that reads well as it is, and as JSON."""

import datetime
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.memory import RESETS
from benchmarks.runner import Measurement
from benchmarks.variants import BUDGET, advice

HEADER = ("framework", "policy", "memory, MiB", "ratio", "step, ms", "ratio", "final loss", "first gradients")
LEFT_ALIGNED = {"framework", "policy", "first gradients"}


def as_table(measurements: Sequence[Measurement]) -> str:
    """Return the table; ratios are to the first row of the same framework."""
    rows = [_row(m, _baseline(m, measurements)) for m in measurements]
    widths = [max(len(cell) for cell in column) for column in zip(HEADER, *rows, strict=True)]
    rule = [
        "-" * width if name in LEFT_ALIGNED else "-" * (width - 1) + ":"
        for name, width in zip(HEADER, widths, strict=True)
    ]
    return "\n".join(_line(cells, widths) for cells in (HEADER, rule, *rows))


def footer(measurements: Sequence[Measurement]) -> str:
    """Return what has to be known to read the table."""
    versions = {m.variant.framework: m.details["version"] for m in measurements}
    lines = [
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}, Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{datetime.date.today():%Y-%m}; scratch files in {tempfile.gettempdir()}.",
        "memory: peak resident memory of a step above the floor (libraries, model, gradients, optimizer state); "
        "step: median of all but the first.",
    ]
    if not RESETS:
        lines.append("This system cannot reset the peak: memory is what exceeds the peak of everything before.")
    if settings := advice():
        lines.append(
            f"All rows but one run as `python -m tensorstash` starts a program, here with "
            f"{', '.join(f'{name}={value}' for name, value in settings.items())}: without it, the C library keeps most "
            f"freed activations, and what a policy frees does not show. 'allocator as it is' is no policy without it: "
            f"compare with that row to see what the setting costs."
        )
    lines.append(f"Policies work behind the computation with {BUDGET} under way in each direction.")
    lines.append("On CPU tensors cpu_offload has nothing to do: it keeps them, and says so in its statistics.")
    return "\n".join(lines)


def as_json(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return everything that was measured, in plain values."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "peak_resets": RESETS,
        "measurements": [asdict(m) for m in measurements],
    }


def _baseline(measurement: Measurement, measurements: Sequence[Measurement]) -> Measurement:
    return next(m for m in measurements if m.variant.framework == measurement.variant.framework)


def _row(m: Measurement, baseline: Measurement) -> tuple[str, ...]:
    return (
        m.variant.framework,
        str(m.variant).replace("|", "\\|"),
        f"{m.activation_bytes / 2**20:.0f}",
        f"{m.activation_bytes / max(baseline.activation_bytes, 1):.2f}",
        f"{m.step_seconds * 1e3:.0f}",
        f"{m.step_seconds / baseline.step_seconds:.2f}",
        f"{m.final_loss:.4f}",
        _gradients(m, baseline),
    )


def _gradients(m: Measurement, baseline: Measurement) -> str:
    if m is baseline:
        return "the reference"
    if m.gradients_sha256 == baseline.gradients_sha256:
        return "bitwise equal"
    return f"differ by {m.gradient_difference:.1e}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if name in LEFT_ALIGNED else cell.rjust(width)
        for name, cell, width in zip(HEADER, cells, widths, strict=True)
    )
    return f"| {' | '.join(padded)} |"
