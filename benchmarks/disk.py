"""Bandwidth and processor time of the disk store beside a bare direct-I/O loop of the same sizes, in one directory.

    python -m benchmarks disk --directory DIR --kib 80 1024 16384 --at-once 1 4 --rounds 8

The two take turns, record by record on the one thread, or a few records that are under way at one time, each on a
thread of its own; the bare loop moves pages that are faulted in already, in calls of 4 MiB, and sums what it moves as
the store does. Shows the median bandwidth and processor time of each and their ratios. Linux only.
"""

import argparse
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from statistics import median

import numpy as np

from benchmarks.harness.bare_disk import Bare
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import spent
from tensorstash.host.arrays import aligned_empty
from tensorstash.host.pages import mapped_pages
from tensorstash.stores.disk.store import Disk

COLUMNS = columns("""
    record KiB:d | at once:d | :> | bare GB/s:.2f | store GB/s:.2f | ratio:.2f | bare CPU ms/GiB:.0f |
    store CPU ms/GiB:.0f | CPU ratio:.2f
""")


def measure(directory: str, nbytes: int, rounds: int, at_once: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the seconds and the processor seconds that a record takes, by ``"write"`` or ``"read"``, and by who."""
    size = at_once**2
    records = max(size, min(32, (128 << 20) // nbytes))
    pages, payload = mapped_pages(nbytes), aligned_empty(nbytes, 0)
    payload[:] = pages[:] = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    bare, store = Bare(directory, pages, records), Disk(directory=directory).open()
    slots: dict[int, object] = {}
    ways: dict[tuple[str, str], Callable[[int], object]] = {
        ("write", "bare"): bare.write,
        ("write", "store"): lambda record: slots.update({record: store.put(payload)}),
        ("read", "bare"): bare.read,
        ("read", "store"): lambda record: store.get(slots[record]),
    }
    batches = [range(start, min(start + size, records)) for start in range(0, records, size)]
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in ways}
    with ThreadPoolExecutor(at_once) as threads:

        def move(way: Callable[[int], object], batch: Iterable[int]) -> None:
            list((threads.map if at_once > 1 else map)(way, batch))

        for _ in range(rounds + 1):
            for verb in ("write", "read"):
                for batch, who in product(batches, ("bare", "store")):
                    wall, cpu = spent(partial(move, ways[verb, who], batch))
                    times[verb, who].append((wall / len(batch), cpu / len(batch)))
            for slot in slots.values():
                store.delete(slot)
    os.close(bare.fd)
    store.close()
    # The first round warms up.
    counted = {key: some[len(batches) :] for key, some in times.items()}
    return {key: (median(wall for wall, _ in some), median(cpu for _, cpu in some)) for key, some in counted.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--kib", type=int, nargs="+", default=[80, 1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="records under way at one time")


def main(options: argparse.Namespace, report: Report) -> None:
    report.begin(COLUMNS)
    for kib, at_once in product(options.kib, options.at_once):
        found = measure(options.directory, kib << 10, options.rounds, at_once)
        for verb in ("write", "read"):
            (bare, bare_cpu), (store, store_cpu) = found[verb, "bare"], found[verb, "store"]
            rates = ((kib << 10) / each / 1e9 for each in (bare, store))
            cpu = (1e3 * each / kib * 2**20 for each in (bare_cpu, store_cpu))
            report.row([kib, at_once, verb, *rates, bare / store, *cpu, store_cpu / bare_cpu])
