"""Bandwidth and processor time of the disk store beside a bare direct-I/O loop of the same sizes, in one directory.

    python -m benchmarks disk
    python -m benchmarks disk --directory DIR --kib 80 1024 16384 --at-once 1 4 --rounds 8

The two take turns, record by record on the one thread, or a few records that are under way at one time, each on a
thread of its own; the bare loop moves pages that are faulted in already, in calls of 4 MiB, and sums what it moves as
the store does. Shows the median bandwidth and processor time of each and their ratios. Linux only.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from time import process_time

import numpy as np

from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import interleave, seconds
from tensorstash.host.arrays import Array, aligned_empty
from tensorstash.host.checksum import checksum
from tensorstash.host.pages import mapped_pages
from tensorstash.stores.disk.store import Disk

CALL = 4 << 20

COLUMNS = columns("""
    record KiB:d | at once:d | :> | bare GB/s:.2f | store GB/s:.2f | ratio:.2f | bare CPU ms/GiB:.0f |
    store CPU ms/GiB:.0f | CPU ratio:.2f
""")

Way = Callable[[int], object]


class Bare:
    """Records in one unlinked file, by as few calls as can be."""

    def __init__(self, directory: str, source: Array, nbytes: int, records: int) -> None:
        self.fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.fd, 0, nbytes * records)
        self.source, self.memory = source, memoryview(source)
        self.nbytes = nbytes

    def write(self, record: int) -> None:
        for start in range(0, self.nbytes, CALL):
            piece = self.memory[start : min(start + CALL, self.nbytes)]
            checksum(self.source[start : start + CALL])
            os.pwrite(self.fd, piece, record * self.nbytes + start)

    def read(self, record: int) -> None:
        for start in range(0, self.nbytes, CALL):
            piece = self.memory[start : min(start + CALL, self.nbytes)]
            os.preadv(self.fd, [piece], record * self.nbytes + start)
            checksum(self.source[start : start + CALL])


def spent(call: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call takes, and the processor time of all threads meanwhile, in seconds."""
    started = process_time()
    return seconds(call), process_time() - started


def measure(directory: str, nbytes: int, rounds: int, at_once: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the seconds and the processor seconds that a record takes, by ``"write"`` or ``"read"``, and by who."""
    records = max(at_once**2, min(32, (128 << 20) // nbytes))
    pages = mapped_pages(nbytes)
    pages[:] = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    payload = aligned_empty(nbytes, 0)
    payload[:] = pages
    bare, store = Bare(directory, pages, nbytes, records), Disk(directory=directory).open()
    slots: dict[int, object] = {}

    def put(record: int) -> None:
        slots[record] = store.put(payload)

    def get(record: int) -> None:
        store.get(slots[record])

    def move(way: Way, batch: Sequence[int]) -> None:
        for _ in (threads.map if at_once > 1 else map)(way, batch):
            pass

    ways: dict[str, dict[str, Way]] = {
        "write": {"bare": bare.write, "store": put},
        "read": {"bare": bare.read, "store": get},
    }
    times: dict[tuple[str, str], list[tuple[float, float]]] = {(verb, who): [] for verb in ways for who in ways[verb]}
    batches = [range(start, min(start + at_once**2, records)) for start in range(0, records, at_once**2)]
    with ThreadPoolExecutor(at_once) as threads:
        for number in range(rounds + 1):
            for verb, pair in ways.items():
                for batch in batches:
                    calls = {who: partial(spent, partial(move, way, batch)) for who, way in pair.items()}
                    for who, [(wall, cpu)] in interleave(calls, 1).items():
                        if number:  # the first round warms up
                            times[verb, who].append((wall / len(batch), cpu / len(batch)))
            for slot in slots.values():
                store.delete(slot)
    os.close(bare.fd)
    store.close()
    return {key: (median(wall for wall, _ in some), median(cpu for _, cpu in some)) for key, some in times.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--kib", type=int, nargs="+", default=[80, 1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="records under way at one time")


def main(options: argparse.Namespace, report: Report) -> None:
    report.begin(COLUMNS)
    for kib in options.kib:
        for at_once in options.at_once:
            found = measure(options.directory, kib << 10, options.rounds, at_once)
            for verb in ("write", "read"):
                (bare, bare_cpu), (store, store_cpu) = found[verb, "bare"], found[verb, "store"]
                rates = ((kib << 10) / each / 1e9 for each in (bare, store))
                cpu = (1e3 * each / kib * 2**20 for each in (bare_cpu, store_cpu))
                report.row(kib, at_once, verb, *rates, bare / store, *cpu, store_cpu / bare_cpu)
