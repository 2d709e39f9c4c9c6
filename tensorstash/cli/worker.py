"""The process of one job: ``python -m tensorstash.cli.worker module:function '{"argument": value}'``.

Prints what the job yields and returns, each as a line of JSON with ``"yield"`` or ``"return"`` before it, and reads a
line before the job goes on. Also what jobs measure themselves with.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Generator
from importlib import import_module
from time import perf_counter, process_time
from typing import Any, Self

from tensorstash.cli import memory
from tensorstash.host.allocator import release_free


class Meter:
    """Seconds, processor seconds and peak memory of each step of this process.

    What runs inside of the context counts, all of it since the last :meth:`begin` as one step. Everything that is in
    memory when the meter is made is its floor; free memory is given back before.

    Args:
        peak: returns the peak of an accelerator's bytes; by default that of resident memory is taken.
    """

    def __init__(self, peak: Callable[[], int] | None = None) -> None:
        gc.collect()
        release_free()
        memory.reset_peak()
        self._peak = peak or memory.peak_bytes
        self.floor_bytes = self.peak_bytes = self._peak()
        self.step_s: list[float] = []
        self.cpu_s: list[float] = []
        self._started = self._cpu_started = 0.0

    @property
    def activation_bytes(self) -> int:
        """The peak so far above the floor."""
        return self.peak_bytes - self.floor_bytes

    def begin(self) -> None:
        """Begin a step."""
        self.step_s.append(0.0)
        self.cpu_s.append(0.0)

    def __enter__(self) -> Self:
        memory.reset_peak()
        self._started, self._cpu_started = perf_counter(), process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.step_s[-1] += perf_counter() - self._started
        self.cpu_s[-1] += process_time() - self._cpu_started
        self.peak_bytes = max(self.peak_bytes, self._peak())

    def report(self) -> dict[str, Any]:
        """Return everything by name, in plain values."""
        names = ("floor_bytes", "peak_bytes", "activation_bytes", "step_s", "cpu_s")
        return {name: getattr(self, name) for name in names}


def main() -> None:
    """Run the job of the command line."""
    module, _, name = sys.argv[1].partition(":")
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        job: Generator[Any, None, Any] = getattr(import_module(module), name)(**json.loads(sys.argv[2]))
        while True:
            try:
                value = next(job)
            except StopIteration as end:
                print(json.dumps(["return", end.value]), file=answers)
                return
            print(json.dumps(["yield", value]), file=answers)
            if not sys.stdin.readline():
                return  # nobody is there to tell


if __name__ == "__main__":
    main()
