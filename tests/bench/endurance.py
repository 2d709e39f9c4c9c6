"""What a training process holds after many steps of changing shapes, against what it held after the first few.

    python tests/bench/endurance.py                                   # 1,000 steps on each framework
    python tests/bench/endurance.py --framework torch --policy "disk_spill" --steps 200 --json out.json

Each run is a process of its own. After every step it notes resident memory, the size of the slab files, and the number
of open descriptors and of threads; the table compares the largest of the first ten steps with the largest of the rest.
The first five steps wait until all their payloads are stored, so that the files are as large as any step can make them.

Files, descriptors and threads have to be flat to the unit. Resident memory may move by ``--tolerance-mib``: the C
allocator's free lists breathe, by about 3 MiB without any hooks too. A payload of the largest batch is 0.25 MiB, so
that over 1,000 steps a leak of one payload in thirty steps is seen. Exits with 1 if anything has grown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FRAMEWORKS = ("reference", "torch", "paddle")
POLICIES = ("none", "disk_spill", "compress | disk_spill")
WARM_UP = 10
LAYERS = 8
ROWS = (1.0, 0.25, 0.75, 0.5, 0.125)
"""Batches of the steps, as parts of the largest, in turn."""


@dataclass(frozen=True)
class Held:
    """What the process holds.

    Args:
        resident_bytes: of physical memory.
        file_bytes: of slab files, whatever of them is free.
        descriptors: open ones.
        threads: of the process, those of libraries included.
    """

    resident_bytes: int
    file_bytes: int
    descriptors: int
    threads: int

    @staticmethod
    def largest(samples: "list[Held]") -> "Held":
        return Held(*map(max, zip(*map(astuple, samples), strict=True)))


def held(stores: list[Any]) -> Held:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"),
        sum(store.file_bytes for store in stores),
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
    )


def lab_named(framework: str) -> Any:
    if framework == "torch":
        from tensorstash.testing.torch_lab import TorchLab as Chosen
    elif framework == "paddle":
        from tensorstash.testing.paddle_lab import PaddleLab as Chosen
    else:
        from tensorstash.testing.reference_lab import ReferenceLab as Chosen
    return Chosen()


def train(framework: str, policy: str, directory: str, steps: int, rows: int, width: int) -> Iterator[Held]:
    """Train a deep network on batches of changing size and yield what is held after each step."""
    import tensorstash as ts
    from tensorstash.testing.layouts import floats

    lab = lab_named(framework)
    weights = [lab.parameter(floats(width, width, seed=layer) / width**0.5) for layer in range(LAYERS)]
    stash: Any = nullcontext()
    stores: list[Any] = []
    if policy != "none":
        chosen = ts.parse(policy.replace("disk_spill", f"disk_spill:directory={directory}"))
        stash = ts.stash(chosen, framework=framework)
        stores += stash._session._stores.values()
    for step in range(steps):
        batch = lab.tensor(floats(int(rows * ROWS[step % len(ROWS)]), width, seed=step))
        with stash as session:
            x = batch
            for weight in weights:
                x = lab.tanh(lab.matmul(x, weight))
            loss = lab.sum(lab.mul(x, x))
        if step < len(ROWS) and session is not None:
            session.drain()
        lab.backward(loss)
        del x, loss
        for weight in weights:
            lab.descend(weight, 1e-3 / rows)
        yield held(stores)
    assert not stores or stash.stats().stored["disk"].tensors > steps


def grown(first: Held, rest: Held, tolerance_bytes: int) -> list[str]:
    """Name what is larger than it was."""
    allowed = Held(tolerance_bytes, 0, 0, 0)
    return [name for name, before in asdict(first).items() if getattr(rest, name) > before + getattr(allowed, name)]


def measure(framework: str, policy: str, options: argparse.Namespace) -> list[Held]:
    command = [sys.executable, __file__, "--work", "--framework", framework, "--policy", policy]
    for name in ("steps", "rows", "width", "directory"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, env={"OMP_NUM_THREADS": "1"} | dict(os.environ), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{framework}, {policy}: exit status {done.returncode}")
    return [Held(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--policy", action="append", help="none, or a policy as one line")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=512, help="of the largest batch")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tolerance-mib", type=float, default=6.0)
    parser.add_argument("--directory", default="/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir())
    parser.add_argument("--json", type=Path, help="write every sample there")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        (framework,), (policy,) = options.framework, options.policy
        for sample in train(framework, policy, options.directory, options.steps, options.rows, options.width):
            print(json.dumps(asdict(sample)), flush=True)  # kept here, they would be what grows
        return

    everything, failed = [], False
    print("| framework | policy | steps | | resident MiB | file MiB | descriptors | threads | grown |")
    print("|---|---|---|---|---|---|---|---|---|")
    for framework in options.framework or FRAMEWORKS:
        for policy in options.policy or POLICIES:
            samples = measure(framework, policy, options)
            first, rest = Held.largest(samples[:WARM_UP]), Held.largest(samples[WARM_UP:])
            found = grown(first, rest, int(options.tolerance_mib * 2**20))
            failed |= bool(found)
            for part, some, verdict in ("first ten", first, ""), ("after", rest, ", ".join(found) or "nothing"):
                print(
                    f"| {framework} | {policy.replace('|', '&#124;')} | {len(samples)} | {part} | "
                    f"{some.resident_bytes / 2**20:.2f} | {some.file_bytes / 2**20:.2f} | {some.descriptors} | "
                    f"{some.threads} | {verdict} |",
                    flush=True,
                )
            run = {"framework": framework, "policy": policy, "samples": [asdict(sample) for sample in samples]}
            everything.append(run)
    if options.json:
        options.json.write_text(json.dumps(everything))
    sys.exit(failed)


if __name__ == "__main__":
    main()
