"""Find causes that keep tensorstash from saving memory on this machine, and name the cures."""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from time import perf_counter
from typing import Any, Literal

import numpy as np

from tensorstash.backends.features import FRAMEWORKS, installed
from tensorstash.cli import own_version
from tensorstash.errors import TensorStashError
from tensorstash.host import native
from tensorstash.host.allocator import CHOICE, returns_memory
from tensorstash.host.mounts import directories_in_memory
from tensorstash.host.pages import preloaded_allocator
from tensorstash.sizes import format_bytes, parse_bytes
from tensorstash.stores.disk.store import Disk

_MARKS = {"good": "ok  ", "note": "note", "bad": "BAD "}
_RECORD_BYTES = 16 << 20
_SLOW_BYTES_PER_S = 5e8


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was seen of a part of the machine, and the cure where one is needed."""

    subject: str
    state: Literal["good", "note", "bad"]
    text: str
    cure: str = ""


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the verb."""
    parser.add_argument("--directory", action="append", default=[], help="to spill to; repeatable")
    parser.add_argument("--size", default="64MiB", help="written to each directory, and read back (default: 64MiB)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args(words)


def main(options: argparse.Namespace) -> int:
    """Print the findings; the status is 1 if something does not work at all."""
    nbytes = parse_bytes(options.size, path="--size")
    found = [*extension(), *allocator(), *disks(options.directory, nbytes=nbytes), *frameworks()]
    if options.json:
        print(json.dumps([asdict(each) for each in found], indent=1))
    else:
        print(f"tensorstash {own_version()}, Python {sys.version.split()[0]}, {sys.platform}")
        for each in found:
            print(f"{_MARKS[each.state]}  {each.subject}: {each.text}")
            if each.cure:
                print(f"      -> {each.cure}")
    return 1 if any(each.state == "bad" for each in found) else 0


def extension() -> Iterator[Finding]:
    """Look for the compiled module."""
    if native.functions is not None:
        yield Finding("compiled extension", "good", "there")
        return
    again = "pip install --force-reinstall --no-deps --no-cache-dir tensorstash"
    cure = f"install a C compiler and Python's headers, then: {again}"
    yield Finding("compiled extension", "note", "missing: NumPy does its work, several times slower", cure)


def allocator() -> Iterator[Finding]:
    """Name the C allocator, and say whether freed activations leave the process."""
    name = preloaded_allocator() or platform.libc_ver()[0] or platform.system()
    if returns_memory():
        yield Finding("allocator", "good", name)
    elif os.environ.get(CHOICE) == "leave":
        text = f"{name}, and policies leave it so: savings of CPU tensors hardly show in the size of the process"
        yield Finding("allocator", "note", text, f"unset {CHOICE}")
    else:
        text = f"{name}: the first policy that frees CPU tensors will change its settings, which costs page faults"
        cure = "start programs with `python -m tensorstash SCRIPT`, after `pip install 'tensorstash[mimalloc]'`"
        yield Finding("allocator", "note", text, cure)


def disks(directories: list[str], *, nbytes: int = 4 * _RECORD_BYTES) -> Iterator[Finding]:
    """Measure directories for ``DiskSpill``, by default that of temporary files, with so many bytes each."""
    for directory in directories or [tempfile.gettempdir()]:
        subject = f"disk at {directory}"
        if directories_in_memory([directory]):
            text = "kept in memory (tmpfs): spilling to it saves nothing"
            yield Finding(subject, "bad", text, "DiskSpill('/path/on/a/disk')")
            continue
        try:
            written, read, is_direct = bandwidth(directory, nbytes)
        except (OSError, TensorStashError) as error:
            yield Finding(subject, "bad", f"cannot be used: {error}", "DiskSpill('/a/directory/you/may/write/to')")
            continue
        text = (
            f"write {format_bytes(int(written))}/s, read {format_bytes(int(read))}/s, direct I/O "
            f"{'works' if is_direct else 'does not work'}, free {format_bytes(shutil.disk_usage(directory).free)}"
        )
        if not is_direct:
            text += ": spilled bytes pass the page cache"
            yield Finding(subject, "note", text, "prefer a local disk with ext4 or xfs")
        elif min(written, read) < _SLOW_BYTES_PER_S:
            yield Finding(subject, "note", f"{text}: slow for spilling", "prefer `recompute | disk_spill`")
        else:
            yield Finding(subject, "good", text)


def bandwidth(directory: str, nbytes: int) -> tuple[float, float, bool]:
    """Return how fast the disk store writes and reads in a directory, in bytes per second, and whether directly."""
    data = np.random.default_rng(0).integers(0, 256, _RECORD_BYTES, dtype=np.uint8)
    store = Disk(directory=directory).open()
    count = max(1, nbytes // _RECORD_BYTES)
    try:
        store.delete(store.put(data))  # makes the file, and reserves its blocks
        begun = perf_counter()
        slots = [store.put(data) for _ in range(count)]
        written = perf_counter()
        for slot in slots:
            store.get(slot)
        read = perf_counter()
        is_direct = store.direct
    finally:
        store.close()
    total = count * _RECORD_BYTES
    return total / (written - begun), total / (read - written), is_direct


def frameworks() -> Iterator[Finding]:
    """Look at each framework: its version, the features that the adapter needs, its accelerators."""
    for name, framework in FRAMEWORKS.items():
        found = installed(name)
        if found is None:
            yield Finding(framework.package, "good", f"not installed; {framework.cure}")
            continue
        lacks = framework.lacks
        text = f"{found}, {len(framework.features) - len(lacks)} of {len(framework.features)} private features found"
        yield Finding(framework.package, "note" if lacks else "good", text, framework.cure if lacks else "")
        for each in lacks:
            text = f"missing, needed for {each.purpose}" + (f": {each.without}" if each.without else "")
            subject = f"{framework.package}: {each.path.replace(':', '.')}"
            yield Finding(subject, "note" if each.without else "bad", text, framework.cure)
        yield from devices(name)


def devices(name: str) -> Iterator[Finding]:
    """Look for the accelerators of a framework; imports it."""
    subject = f"accelerators of {name}"
    try:
        module: Any = import_module(f"tensorstash.cli.frameworks.{name}")
    except ImportError as error:
        yield Finding(subject, "bad", f"{name} cannot be imported: {error}", "install it again")
        return
    none = "none: cpu_offload has nothing to do here; disk_spill, recompute and quantize work"
    yield Finding(subject, "good", ", ".join(module.accelerators()) or none)
