"""One lab per framework; each imports its framework."""

from functools import cache
from importlib import import_module

from tensorstash.testing.lab import Lab

BACKENDS = ("reference", "torch", "paddle")


@cache
def lab_of(framework: str) -> Lab:
    """Return the lab of a framework; imports no other."""
    lab: Lab = getattr(import_module(f"{__name__}.{framework}"), f"{framework.title()}Lab")()
    return lab
