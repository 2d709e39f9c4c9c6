"""Where a framework is not installed, its tests and doctests are left out. What is imported is compiled once."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

if sys.dont_write_bytecode and sys.prefix != sys.base_prefix:  # each process would compile the frameworks anew
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(sys.prefix, "bytecode"))  # as run.py does
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": sys.pycache_prefix}

ABSENT = [name for name in ("torch", "paddle") if find_spec(name) is None]
IMPORTS = re.compile(
    rf"^(?:import|from) (?:[\w.]+\.)?(?:{'|'.join(ABSENT)})\b|^from [\w.]+ import .*\b(?:{'|'.join(ABSENT)})$",
    re.MULTILINE,
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what imports a framework that is not there."""
    source = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if not ABSENT or source.suffix != ".py" or not source.exists():
        return None
    return source.stem in ABSENT or bool(IMPORTS.search(source.read_text())) or None
