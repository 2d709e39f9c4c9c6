"""What ``tensorstash doctor`` looks at: each check gives findings, and each finding that is none too good a cure."""

import ctypes
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np

from tensorstash.backends.features import FRAMEWORKS, installed
from tensorstash.engine.advice import directories_in_memory
from tensorstash.errors import TensorStashError
from tensorstash.host import native
from tensorstash.host.allocator import installed_allocator, returns_memory
from tensorstash.host.pages import preloaded_allocator
from tensorstash.sizes import format_bytes
from tensorstash.stores.disk.store import Disk
from tensorstash.stores.disk.syscalls import Syscalls

RECORD_BYTES = 16 << 20
_BLOCK_BYTES = 4 << 20
_SLOW_BYTES_PER_S = 5e8


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        subject: what was looked at.
        state: whether it is as it should be, costs something, or keeps the package from working.
        text: what was found.
        cure: what to do about it; empty where there is nothing to do.
    """

    subject: str
    state: Literal["good", "note", "bad"]
    text: str
    cure: str = ""


def extension() -> Iterator[Finding]:
    """Look for the compiled module."""
    if native.functions is not None:
        yield Finding("compiled extension", "good", "there")
    else:
        yield Finding(
            "compiled extension",
            "note",
            "missing: NumPy does its work, several times slower",
            "install a C compiler and Python's headers, then: pip install --force-reinstall --no-cache-dir tensorstash",
        )


def allocator() -> Iterator[Finding]:
    """See which allocator serves activations, and how much of what is freed stays with the process."""
    name = preloaded_allocator() or platform.libc_ver()[0] or platform.system()
    hidden = hidden_share()
    text = name if hidden is None else f"{name}; of blocks of {format_bytes(_BLOCK_BYTES)} freed, {hidden:.0%} stay"
    if returns_memory() or (hidden is not None and hidden < 0.1):
        yield Finding("allocator", "good", text)
        return
    better = installed_allocator()
    package = "" if better else ", and better with tcmalloc installed (Debian: libtcmalloc-minimal4)"
    yield Finding(
        "allocator",
        "note",
        f"{text}: savings of CPU tensors hardly show in the size of the process",
        f"start programs with `python -m tensorstash SCRIPT`{package}",
    )


def hidden_share() -> float | None:
    """Return how much of freed memory stays with this process, as a fraction, or None where that cannot be seen."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(4 * _BLOCK_BYTES))  # glibc raises its threshold when a mapped block is freed
    blocks = [libc.malloc(_BLOCK_BYTES) for _ in range(16)]
    for block in blocks:
        ctypes.memset(block, 1, _BLOCK_BYTES)
    full = _resident_bytes()
    for block in blocks[:-1]:
        libc.free(block)
    freed = full - _resident_bytes()
    libc.free(blocks[-1])
    return min(1.0, max(0.0, 1 - freed / (15 * _BLOCK_BYTES)))


def cores() -> Iterator[Finding]:
    """Count what computes."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS")
    text = f"{usable} usable" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    if usable > 1:
        yield Finding("cores", "good", text)
    else:
        yield Finding(
            "cores", "note", f"{text}: background work takes turns with the computation", "prefer DiskSpill to codecs"
        )


def disks(directories: tuple[str, ...] = (), *, nbytes: int = 4 * RECORD_BYTES) -> Iterator[Finding]:
    """Measure the directories that ``DiskSpill`` would use.

    Args:
        directories: by default the one of temporary files.
        nbytes: what is written and read in each.
    """
    for directory in directories or (tempfile.gettempdir(),):
        subject = f"disk at {directory}"
        if directories_in_memory([directory]):
            yield Finding(
                subject, "bad", "kept in memory (tmpfs): spilling to it saves nothing", "DiskSpill('/path/on/a/disk')"
            )
            continue
        try:
            written, read = bandwidth(directory, nbytes)
            direct = has_direct_io(directory)
        except (OSError, TensorStashError) as error:
            yield Finding(subject, "bad", f"cannot be used: {error}", "DiskSpill('/a/directory/you/may/write/to')")
            continue
        text = (
            f"write {format_bytes(int(written))}/s, read {format_bytes(int(read))}/s, "
            f"direct I/O {'works' if direct else 'does not work'}, free {_free(directory)}"
        )
        if not direct:
            yield Finding(
                subject, "note", f"{text}: spilled bytes pass the page cache", "prefer a local disk with ext4 or xfs"
            )
        elif min(written, read) < _SLOW_BYTES_PER_S:
            yield Finding(
                subject, "note", text, "slow for spilling: prefer `compress | disk_spill`, or list several disks"
            )
        else:
            yield Finding(subject, "good", text)


def bandwidth(directory: str, nbytes: int) -> tuple[float, float]:
    """Return how fast the disk store writes and reads there, in bytes per second.

    Args:
        directory: where.
        nbytes: of random data, rounded down to whole records of :data:`RECORD_BYTES`, at least one.
    """
    data = np.random.default_rng(0).integers(0, 256, RECORD_BYTES, dtype=np.uint8)
    store = Disk(directory=directory).open()
    count = max(1, nbytes // RECORD_BYTES)
    try:
        store.delete(store.put(data))  # makes the file, and reserves its blocks
        begun = perf_counter()
        slots = [store.put(data) for _ in range(count)]
        written = perf_counter()
        for slot in slots:
            store.get(slot)
        read = perf_counter()
    finally:
        store.close()
    total = count * RECORD_BYTES
    return total / (written - begun), total / (read - written)


def has_direct_io(directory: str) -> bool:
    """Whether reads and writes there can bypass the page cache."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return Syscalls().enable_direct(file.fileno()) > 0


def frameworks() -> Iterator[Finding]:
    """Look at each framework: its version, and what the adapter needs of it."""
    for name, framework in FRAMEWORKS.items():
        found = installed(name)
        if found is None:
            yield Finding(framework.package, "good", f"not installed; versions that work: {framework.versions}")
            continue
        lacks = [each for each in framework.features if not each.is_there()]
        text = f"{found}, {len(framework.features) - len(lacks)} of {len(framework.features)} private features found"
        yield Finding(framework.package, "good" if not lacks else "note", text)
        for each in lacks:
            yield Finding(
                f"{framework.package}: {each.path.replace(':', '.')}",
                "note" if each.without else "bad",
                f"missing, needed for {each.purpose}" + (f": {each.without}" if each.without else ""),
                f"versions that work: {framework.versions}",
            )


def _free(directory: str) -> str:
    descriptor = os.open(directory, os.O_RDONLY) if os.name == "posix" else -1
    try:
        return format_bytes(Syscalls().available(descriptor, directory))
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
