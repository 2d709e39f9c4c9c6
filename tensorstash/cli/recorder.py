"""The steps of a training script, observed from its optimizers without a change of the script."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from tensorstash.host.pages import peak_bytes


@dataclass
class Record:
    """One run, as its process writes it.

    Args:
        seconds: of each step, from the end of the last one.
        gradients: SHA-256 of all gradients at each step.
        peak: largest resident size of the process, in bytes; 0 where the system does not say.
        device_peak: most bytes in use on an accelerator; 0 without one.
        lines: that were printed.
    """

    seconds: list[float] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    peak: int = 0
    device_peak: int = 0
    lines: list[str] = field(default_factory=list)


class Recorder:
    """Writes a record of each step of this process's optimizers to a path, and ends the program after so many."""

    def __init__(self, path: str, steps: int) -> None:
        self._path, self._steps, self._record = Path(path), steps, Record()
        self._framework: Any = None
        self._since = perf_counter()

    def watch(self, framework: str) -> None:
        """Watch the optimizers of a framework."""
        self._framework = import_module(f"tensorstash.cli.frameworks.{framework}")
        self._framework.watch(self._before, self._after)

    def _before(self, gradients: Iterator[bytes]) -> None:
        begun, digest = perf_counter(), sha256()
        for each in gradients:
            digest.update(each)
        self._record.gradients.append(digest.hexdigest())
        self._since += perf_counter() - begun  # the digest is no part of the step

    def _after(self) -> None:
        record = self._record
        record.seconds.append(perf_counter() - self._since)
        record.peak, record.device_peak = peak_bytes(), self._framework.peak_of_device()
        self._path.write_text(json.dumps(asdict(record)), encoding="utf-8")
        if len(record.seconds) >= self._steps:
            raise SystemExit(0)
        self._since = perf_counter()
