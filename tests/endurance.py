"""What a training process holds after many steps of changing shapes, against what it held after the first few.

    python -m tests.endurance                                    # 1,000 steps on each framework
    python -m tests.endurance --framework torch --policy "disk_spill" --steps 200

Each run is a process of its own. After every step it looks at resident memory, the size of the slab files, and the
number of open descriptors and of threads, and compares the largest of the first ten steps with the largest of the rest.
The first five steps wait until all their payloads are stored, so that the files are as large as any step can make them.

Files, descriptors and threads have to be flat to the unit. Resident memory may move by ``--tolerance-mib``: the C
allocator's free lists breathe, by about 3 MiB without any hooks too. A payload of the largest batch is 0.25 MiB, so
that over 1,000 steps a leak of one payload in thirty steps is seen. Exits with 1 if anything has grown. Linux only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import tensorstash as ts
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import floats

POLICIES = ("none", "disk_spill", "compress | disk_spill")
WARM_UP, LAYERS, WIDTH = 10, 8, 128
ROWS = (512, 128, 384, 256, 64)  # of the batches, in turn

Held = dict[str, float]


def held(directory: str) -> Held:
    """Return what this process holds; threads are those of libraries, too."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    # The descriptor that listed them is closed again.
    slabs = [path for path in descriptors if path.is_symlink() and os.readlink(path).startswith(f"{directory}/")]
    return {
        "resident MiB": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "file MiB": sum(path.stat().st_size for path in slabs) / 2**20,
        "descriptors": len(descriptors),
        "threads": len(os.listdir("/proc/self/task")),
    }


def train(framework: str, policy: str, directory: str, steps: int) -> Iterator[Held]:
    """Train a deep network on batches of changing size and yield what is held after each step."""
    lab = lab_of(framework)
    weights = [lab.parameter(floats(WIDTH, WIDTH, seed=layer) / WIDTH**0.5) for layer in range(LAYERS)]
    line = policy.replace("disk_spill", f"disk_spill:directory={directory}")
    stash: Any = nullcontext() if policy == "none" else ts.stash(line, framework=framework)
    for step in range(steps):
        batch = lab.tensor(floats(ROWS[step % len(ROWS)], WIDTH, seed=step))
        with stash as entered:
            x = batch
            for weight in weights:
                x = (x @ weight).tanh()
            loss = (x * x).sum()
        if step < len(ROWS) and entered is not None:
            entered.drain()
        lab.backward(loss)
        del x, loss
        for weight in weights:
            lab.descend(weight, 1e-3 / ROWS[0])
        yield held(directory)
    assert policy == "none" or stash.stats().stashed.tensors > steps


def main() -> int:
    """Print what each process holds, early and late; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", action="append", choices=BACKENDS)
    parser.add_argument("--policy", action="append", help="none, or a policy as one line")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tolerance-mib", type=float, default=6.0)
    parser.add_argument("--directory", default="/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir())
    options = parser.parse_args()
    runs = list(product(options.framework or BACKENDS, options.policy or POLICIES))
    if len(runs) > 1:
        rest = [
            f"--steps={options.steps}",
            f"--tolerance-mib={options.tolerance_mib}",
            f"--directory={options.directory}",
        ]
        command = sys.executable, "-m", "tests.endurance", *rest
        return max(subprocess.run([*command, "--framework", *run[:1], "--policy", *run[1:]]).returncode for run in runs)
    early: Held = {}
    late: Held = {}
    for step, sample in enumerate(train(*runs[0], os.path.realpath(options.directory), options.steps)):
        largest = early if step < WARM_UP else late
        largest.update({name: max(value, largest.get(name, 0)) for name, value in sample.items()})
    allowed = {"resident MiB": options.tolerance_mib}
    grown = [name for name in early if late[name] > early[name] + allowed.get(name, 0)]
    sizes = ", ".join(f"{name} {early[name]:.2f} to {late[name]:.2f}" for name in early)
    print(f"{', '.join(runs[0])}, {options.steps} steps: {sizes}; grown: {', '.join(grown) or 'nothing'}", flush=True)
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
