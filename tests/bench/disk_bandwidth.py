"""Bandwidth of the disk store beside a bare direct-I/O loop of the same sizes, on the same directory, in the same run.

    python tests/bench/disk_bandwidth.py [--directory DIR] [--kib 1024 4096 16384 65536] [--rounds 8]

The two take turns, record by record; the bare loop moves pages that are faulted in already, in calls of 4 MiB. Prints
the median bandwidth of each and their ratio. Linux only.
"""

import argparse
import os
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


def measure(directory: str, nbytes: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return bare and store bandwidth for writing and reading, in bytes per second."""
    records = max(1, min(32, (128 << 20) // nbytes))
    pages = mapped_pages(nbytes)
    pages[:] = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    payload = aligned_empty(nbytes, 0)
    payload[:] = pages
    bare, store = Bare(directory, pages, nbytes, records), Disk(directory=directory).open()
    seconds: dict[str, tuple[list[float], list[float]]] = {"write": ([], []), "read": ([], [])}
    for number in range(rounds + 1):
        slots = []
        for record in range(records):
            started = perf_counter()
            bare.write(record)
            middle = perf_counter()
            slots.append(store.put(payload))
            if number:
                seconds["write"][0].append(middle - started)
                seconds["write"][1].append(perf_counter() - middle)
        for record, slot in enumerate(slots):
            started = perf_counter()
            bare.read(record)
            middle = perf_counter()
            store.get(slot)
            if number:
                seconds["read"][0].append(middle - started)
                seconds["read"][1].append(perf_counter() - middle)
        for slot in slots:
            store.delete(slot)
    os.close(bare.fd)
    store.close()
    return {verb: (nbytes / median(one), nbytes / median(other)) for verb, (one, other) in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--kib", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    print("| record KiB | | bare GB/s | store GB/s | ratio |\n|---|---|---|---|---|")
    for kib in options.kib:
        for verb, (bare, store) in measure(options.directory, kib << 10, options.rounds).items():
            print(f"| {kib} | {verb} | {bare / 1e9:.2f} | {store / 1e9:.2f} | {store / bare:.2f} |")


if __name__ == "__main__":
    main()
