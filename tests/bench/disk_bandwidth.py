"""Bandwidth of the disk store beside a bare direct-I/O loop of the same sizes, on the same directory, in the same run.

    python tests/bench/disk_bandwidth.py [--directory DIR] [--kib 1024 4096 16384 65536] [--at-once 1 4] [--rounds 8]

The two take turns, record by record, or a few records that are under way at one time, each on a thread; the bare loop
moves pages that are faulted in already, in calls of 4 MiB. Prints the median bandwidth of each and their ratio. Linux
only.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import numpy as np

from tensorstash.buffers import Array, aligned_empty
from tensorstash.pages import mapped_pages
from tensorstash.stores.disk import Disk

CALL = 4 << 20


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

    ways = {"write": (bare.write, put), "read": (bare.read, get)}
    seconds: dict[str, tuple[list[float], list[float]]] = {verb: ([], []) for verb in ways}
    with ThreadPoolExecutor(at_once) as threads:
        for number in range(rounds + 1):
            for verb, pair in ways.items():
                for batch in batched(range(records), at_once**2):
                    for way, times in zip(pair, seconds[verb], strict=True):
                        started = perf_counter()
                        for _ in threads.map(way, batch):
                            pass
                        if number:
                            times.append((perf_counter() - started) / len(batch))
            for slot in slots.values():
                store.delete(slot)
    os.close(bare.fd)
    store.close()
    return {verb: (nbytes / median(one), nbytes / median(other)) for verb, (one, other) in seconds.items()}


def batched(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--kib", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="records under way at one time")
    options = parser.parse_args()
    print("| record KiB | at once | | bare GB/s | store GB/s | ratio |\n|---|---|---|---|---|---|")
    for kib in options.kib:
        for at_once in options.at_once:
            for verb, (bare, store) in measure(options.directory, kib << 10, options.rounds, at_once).items():
                print(f"| {kib} | {at_once} | {verb} | {bare / 1e9:.2f} | {store / 1e9:.2f} | {store / bare:.2f} |")


if __name__ == "__main__":
    main()
