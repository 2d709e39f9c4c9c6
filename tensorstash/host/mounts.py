"""File systems that are kept in memory."""

import os
from collections.abc import Iterable
from pathlib import Path


def directories_in_memory(directories: Iterable[str], mounts: str = "/proc/self/mounts") -> list[str]:
    """Return those directories that lie on a file system which is kept in memory, where the system lists those."""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            rows = [line.split()[1:3] for line in file if len(line.split()) > 2]
    except OSError:  # not Linux
        return []
    kinds = {Path(place.replace("\\040", " ")): kind for place, kind in rows}  # a later one covers an earlier one
    return [each for each in directories if _kind_of(Path(os.path.realpath(each)), kinds) in ("tmpfs", "ramfs")]


def _kind_of(path: Path, kinds: dict[Path, str]) -> str:
    return next((kinds[above] for above in (path, *path.parents) if above in kinds), "")
