"""The module compiled from ``native/``, where the package was installed with a C compiler."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

functions: Any = None if find_spec("tensorstash.host._native") is None else import_module("tensorstash.host._native")
"""The module; None where nothing was compiled, or where a test works without. A broken one is an error."""
