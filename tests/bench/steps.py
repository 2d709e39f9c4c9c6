"""Whole training steps, each variant in a fresh process of its own, which takes turns with the others, step by step."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tensorstash.allocator import MMAP_THRESHOLD_BYTES, advised_environment  # noqa: E402

WORKLOADS = ("gpt", "gpt_dropout", "resnet", "paddle_gpt")
NONE, RECOMPUTE = "none", "recompute"
ALLOCATORS = ("default", "advised", "threshold")
DIRECTORY = "/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir()

RESIDENT_MIB = {"gpt": 8, "gpt_dropout": 12, "resnet": 200, "paddle_gpt": 0}
"""How much of the latest activations a policy that only spills may leave in memory, by workload: what its bar has
room for."""

_ALLOCATOR_VARIABLES = ("LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_")


@dataclass(frozen=True, slots=True)
class Variant:
    """What one process does.

    Args:
        workload: one of :data:`WORKLOADS`.
        method: ``"none"``, ``"recompute"``, or a policy as one line.
        allocator: the C library's as it is, what ``python -m tensorstash`` chooses, or glibc's with a threshold.
        threads: for computing.
        dtype: of weights and activations.
    """

    workload: str
    method: str = NONE
    allocator: str = "advised"
    threads: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def resident_bytes(self) -> int:
        """Bytes that the policy may leave where they are."""
        return RESIDENT_MIB[self.workload] * 2**20 if self.method == "disk_spill" else 0

    @property
    def reads_ahead(self) -> bool:
        """Whether it brings payloads back before they are asked for: quantized ones are few bytes, and soon decoded."""
        return "quantize" not in self.method

    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        plain = {name: value for name, value in os.environ.items() if name not in _ALLOCATOR_VARIABLES}
        plain["OMP_NUM_THREADS"] = str(self.threads)
        if self.allocator == "advised":
            return advised_environment(plain)
        if self.allocator == "threshold":
            plain["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD_BYTES)
        return plain


@dataclass(frozen=True, slots=True)
class Effort:
    """How large, and how long, every run is.

    Args:
        steps: of a process, 2 or more; the first does not count.
        limit: most bytes under way in each direction, as text.
        directory: where payloads are spilled to.
        idle: most bytes of host memory that the package keeps for later, as text; None for what it keeps by itself.
        tiny: sizes that take a second.
    """

    steps: int
    limit: str = "48 MiB"
    directory: str = DIRECTORY
    idle: str | None = None
    tiny: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What one process measured.

    Args:
        step_s: duration of each step, in seconds.
        cpu_s: processor time of each step, of all threads, in seconds: says more than ``step_s`` on a machine that
            others use.
        activation_bytes: peak resident memory above libraries, model, gradients and optimizer state.
        stashed_bytes: bytes of a step that the policy's plan applies to.
        gradients: digest of the last step's gradients.
        stats: of the session; empty without one.
    """

    step_s: Sequence[float]
    cpu_s: Sequence[float]
    activation_bytes: int
    stashed_bytes: float
    gradients: str
    stats: dict[str, Any]


Runs = dict[Variant, list[Run]]


class StepError(RuntimeError):
    """A training process failed; the message ends with what it wrote to its standard error."""


class Worker:
    """A training process that makes a step when it is told to.

    Args:
        variant: what it does.
        effort: how much.
    """

    def __init__(self, variant: Variant, effort: Effort) -> None:
        self._variant = variant
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        command = [sys.executable, str(Path(__file__).with_name("step_worker.py"))]
        command += [json.dumps(asdict(variant)), json.dumps(asdict(effort))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=variant.environment(), stdin=pipe, stdout=pipe, stderr=self._complaints, text=True
        )

    def wait(self) -> str:
        """Wait until what it was told is done, and return the line in which it says so.

        Raises:
            StepError: it has ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._complaints.seek(0)
            raise StepError(f"{self._variant}: exit status {status}\n{self._complaints.read()[-3000:]}")
        return line

    def go(self) -> None:
        """Make a step, and wait until it is made."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.wait()

    def report(self) -> Run:
        """Return what it has measured; it makes no more steps."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return Run(**json.loads(self.wait()))

    def end(self) -> None:
        """Be rid of the process, whatever it is at."""
        with self._process, self._complaints:
            self._process.kill()


@contextmanager
def workers(variants: Sequence[Variant], effort: Effort) -> Iterator[dict[Variant, Worker]]:
    """Start processes, and wait until each is ready, one after the other."""
    with ExitStack() as stack:
        started = {}
        for variant in variants:
            started[variant] = Worker(variant, effort)
            stack.callback(started[variant].end)
            started[variant].wait()
        yield started


def run_together(variants: Sequence[Variant], effort: Effort) -> dict[Variant, Run]:
    """Run variants at one time, each in a fresh process, of which one makes a step while the others wait.

    Steps that are compared are seconds apart, so that a machine whose speed drifts is fair to all; every other turn
    goes backwards.
    """
    with workers(variants, effort) as started:
        for step in range(effort.steps):
            for variant in variants if step % 2 else reversed(variants):
                started[variant].go()
        return {variant: worker.report() for variant, worker in started.items()}


def take_turns(variants: Sequence[Variant], effort: Effort, *, rounds: int, minutes: float) -> Runs:
    """Run every variant once per round, together with those it is compared with.

    Args:
        variants: what to run, each once.
        effort: of each run.
        rounds: how often.
        minutes: after this time no further round is begun that would not end within it, by the longest so far.
    """
    runs: Runs = {variant: [] for variant in variants}
    groups: dict[tuple[str, str, int], list[Variant]] = {}
    for variant in variants:
        groups.setdefault((variant.workload, variant.dtype, variant.threads), []).append(variant)
    begun, longest = monotonic(), 0.0
    for number in range(rounds):
        round_begun = monotonic()
        if number and round_begun - begun + longest > minutes * 60:
            print(f"{number} of {rounds} rounds, for want of time", file=sys.stderr)
            break
        print(f"round {number + 1} of {rounds}, {len(variants)} runs: ", end="", file=sys.stderr)
        for group in groups.values():
            for variant, run in run_together(group, effort).items():
                runs[variant].append(run)
                print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        longest = max(longest, monotonic() - round_begun)
    return runs


Figure = Callable[[Run], Sequence[float]]


def middle(figure: Figure, runs: Sequence[Run]) -> float:
    """Return the median of a figure over all rounds."""
    return median(value for run in runs for value in figure(run))


def ratio(figure: Figure, runs: Sequence[Run], base: Sequence[Run]) -> float:
    """Return the median of a figure relative to what another variant had in the same step of the same round."""
    pairs = ((figure(ours), figure(theirs)) for ours, theirs in zip(runs, base, strict=True))
    return median(our / their for pair in pairs for our, their in zip(*pair, strict=True))


def step_s(run: Run) -> Sequence[float]:
    return run.step_s


def cpu_s(run: Run) -> Sequence[float]:
    return run.cpu_s


def activation_bytes(run: Run) -> Sequence[float]:
    return (run.activation_bytes,)


def same_gradients(runs: Sequence[Run], base: Sequence[Run]) -> bool:
    return len({run.gradients for run in (*runs, *base)}) == 1


def machine() -> str:
    """Return one line that says where and when this was measured."""
    processor = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "paddlepaddle", "numpy"))
    busy = f"load {os.getloadavg()[0]:.1f}, " if hasattr(os, "getloadavg") else ""
    system = f"{platform.system()}, Python {platform.python_version()}, {packages}"
    return f"{processor}, {os.cpu_count()} cores, {busy}{system}, {date.today().isoformat()}"


def as_json(runs: Runs) -> str:
    """Return everything that was measured."""
    rows = [{"variant": asdict(variant), "runs": [asdict(run) for run in some]} for variant, some in runs.items()]
    return json.dumps({"machine": machine(), "measured": rows}, indent=1)
