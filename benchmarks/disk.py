"""Bandwidth of the disk store beside a bare direct-I/O loop of the same sizes, on the same directory.

    python -m benchmarks disk
    python -m benchmarks disk --directory DIR --kib 1024 4096 16384 65536 --at-once 1 4 --rounds 8

The two take turns, record by record, or a few records that are under way at one time, each on a thread; the bare loop
moves pages that are faulted in already, in calls of 4 MiB. Shows the median bandwidth of each and their ratio. Linux
only.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import numpy as np

from benchmarks.harness.report import Report
from benchmarks.harness.runner import interleave, seconds
from tensorstash.host.arrays import Array, aligned_empty
from tensorstash.host.pages import mapped_pages
from tensorstash.stores.disk.store import Disk

CALL = 4 << 20

Way = Callable[[int], object]


class Bare:
    """Records in one unlinked file, by as few calls as can be."""

    def __init__(self, directory: str, source: Array, nbytes: int, records: int) -> None:
        self.fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.fd, 0, nbytes * records)
        self.memory = memoryview(source)
        self.nbytes = nbytes

    def write(self, record: int) -> None:
        for start in range(0, self.nbytes, CALL):
            piece = self.memory[start : min(start + CALL, self.nbytes)]
            os.pwrite(self.fd, piece, record * self.nbytes + start)

    def read(self, record: int) -> None:
        for start in range(0, self.nbytes, CALL):
            piece = self.memory[start : min(start + CALL, self.nbytes)]
            os.preadv(self.fd, [piece], record * self.nbytes + start)


def measure(directory: str, nbytes: int, rounds: int, at_once: int) -> dict[str, tuple[float, float]]:
    """Return bare and store bandwidth for writing and reading, in bytes per second."""
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
        for _ in threads.map(way, batch):
            pass

    ways: dict[str, dict[str, Way]] = {
        "write": {"bare": bare.write, "store": put},
        "read": {"bare": bare.read, "store": get},
    }
    times: dict[tuple[str, str], list[float]] = {(verb, who): [] for verb, pair in ways.items() for who in pair}
    batches = [range(start, min(start + at_once**2, records)) for start in range(0, records, at_once**2)]
    with ThreadPoolExecutor(at_once) as threads:
        for number in range(rounds + 1):
            for verb, pair in ways.items():
                for batch in batches:
                    calls = {who: partial(seconds, partial(move, way, batch)) for who, way in pair.items()}
                    for who, [spent] in interleave(calls, 1).items():
                        if number:  # the first round warms up
                            times[verb, who].append(spent / len(batch))
            for slot in slots.values():
                store.delete(slot)
    os.close(bare.fd)
    store.close()
    return {verb: (nbytes / median(times[verb, "bare"]), nbytes / median(times[verb, "store"])) for verb in ways}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--kib", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="records under way at one time")


def main(options: argparse.Namespace, report: Report) -> int:
    report.begin("record KiB", "at once", "", "bare GB/s", "store GB/s", "ratio")
    rows = report.measured["rows"] = []
    for kib in options.kib:
        for at_once in options.at_once:
            found = measure(options.directory, kib << 10, options.rounds, at_once)
            for verb, (bare, store) in found.items():
                rows.append({"kib": kib, "at_once": at_once, "verb": verb, "bare": bare, "store": store})
                figures = f"{bare / 1e9:.2f}", f"{store / 1e9:.2f}", f"{store / bare:.2f}"
                report.row(str(kib), str(at_once), verb, *figures)
    return 0
