"""The module compiled from ``native/``, where the package was installed with a C compiler.

It has ``Block`` and ``guarded`` for :mod:`tensorstash.host.blocks`, and functions on arrays for
:mod:`tensorstash.kernels`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

functions: Any = None if find_spec("tensorstash.host._native") is None else import_module("tensorstash.host._native")
"""The module; None where nothing was compiled. One that is there but broken is an error.

A test sets it to None to see that everything works without.
"""
