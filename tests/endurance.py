"""What a training process holds after many steps of changing shapes, against what it held after the first few.

    python -m tests.endurance                                    # 1,000 steps on each framework
    python -m tests.endurance --framework torch --policy "disk_spill" --steps 200

Each run is a process of its own. After every step it notes resident memory, the size of the slab files, and the number
of open descriptors and of threads; the table compares the largest of the first ten steps with the largest of the rest.
The first five steps wait until all their payloads are stored, so that the files are as large as any step can make them.

Files, descriptors and threads have to be flat to the unit. Resident memory may move by ``--tolerance-mib``: the C
allocator's free lists breathe, by about 3 MiB without any hooks too. A payload of the largest batch is 0.25 MiB, so
that over 1,000 steps a leak of one payload in thirty steps is seen. Exits with 1 if anything has grown. Linux only.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tensorstash as ts
from benchmarks.harness.report import markdown
from benchmarks.harness.turns import Job, run
from benchmarks.models.training import NONE
from tensorstash.testing.labs import lab_of
from tensorstash.testing.layouts import floats

FRAMEWORKS = ("reference", "torch", "paddle")
POLICIES = (NONE, "disk_spill", "compress | disk_spill")
WARM_UP = 10
LAYERS = 8
ROWS = (1.0, 0.25, 0.75, 0.5, 0.125)
"""Batches of the steps, as parts of the largest, in turn."""


Held = dict[str, int]
"""What a process holds: ``resident_bytes`` of physical memory, ``file_bytes`` of slab files, whatever of them is free,
open ``descriptors``, and ``threads``, those of libraries included."""


def held(directory: str) -> Held:
    """Return what this process holds.

    Args:
        directory: where its slab files are.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    # The descriptor that listed them is closed again.
    slabs = [path for path in descriptors if path.is_symlink() and os.readlink(path).startswith(f"{directory}/")]
    return {
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "file_bytes": sum(path.stat().st_size for path in slabs),
        "descriptors": len(descriptors),
        "threads": len(os.listdir("/proc/self/task")),
    }


def largest(samples: list[Held]) -> Held:
    return {name: max(sample[name] for sample in samples) for name in samples[0]}


def train(
    framework: str, policy: str, directory: str, steps: int, rows: int, width: int
) -> Generator[Held | None, None, None]:
    """Train a deep network on batches of changing size and yield what is held after each step."""
    lab = lab_of(framework)
    directory = os.path.realpath(directory)
    weights = [lab.parameter(floats(width, width, seed=layer) / width**0.5) for layer in range(LAYERS)]
    line = policy.replace("disk_spill", f"disk_spill:directory={directory}")
    stash: Any = nullcontext() if policy == NONE else ts.stash(line, framework=framework)
    yield None
    for step in range(steps):
        batch = lab.tensor(floats(int(rows * ROWS[step % len(ROWS)]), width, seed=step))
        with stash as entered:
            x = batch
            for weight in weights:
                x = lab.tanh(lab.matmul(x, weight))
            loss = lab.sum(lab.mul(x, x))
        if step < len(ROWS) and entered is not None:
            entered.drain()
        lab.backward(loss)
        del x, loss
        for weight in weights:
            lab.descend(weight, 1e-3 / rows)
        yield held(directory)  # kept here, they would be what grows
    assert policy == NONE or stash.stats().stashed.tensors > steps


def grown(first: Held, rest: Held, tolerance_bytes: int) -> list[str]:
    """Name what is larger than it was."""
    allowed = {"resident_bytes": tolerance_bytes}
    return [name for name, before in first.items() if rest[name] > before + allowed.get(name, 0)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each process holds, early and late; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--policy", action="append", help="none, or a policy as one line")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=512, help="of the largest batch")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tolerance-mib", type=float, default=6.0)
    parser.add_argument("--directory", default="/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir())
    options = parser.parse_args(arguments)
    heads = ("framework", "policy", "steps", "", "resident MiB", "file MiB", "descriptors", "threads", "grown")
    rows: list[list[str]] = []
    failed = False
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    for framework in options.framework or FRAMEWORKS:
        for policy in options.policy or POLICIES:
            told = {name: getattr(options, name) for name in ("steps", "rows", "width", "directory")}
            told |= {"framework": framework, "policy": policy}
            samples: list[Held] = []
            job = Job(f"{framework}, {policy}", "tests.endurance:train", told, environment)
            run(job, lambda sample, samples=samples: samples.append(sample))
            first, rest = largest(samples[:WARM_UP]), largest(samples[WARM_UP:])
            found = grown(first, rest, int(options.tolerance_mib * 2**20))
            failed |= bool(found)
            for part, some, verdict in ("first ten", first, ""), ("after", rest, ", ".join(found) or "nothing"):
                sizes = [f"{some[name] / 2**20:.2f}" for name in ("resident_bytes", "file_bytes")]
                counts = str(some["descriptors"]), str(some["threads"])
                rows.append([framework, policy, str(len(samples)), part, *sizes, *counts, verdict])
    print(markdown(heads, rows, left=("framework", "policy", "", "grown")))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
