"""The lab of each framework, made when it is first asked for."""

from functools import cache
from importlib import import_module

from tensorstash.testing.lab import Lab

BACKENDS = ("reference", "torch", "paddle")


@cache
def lab_of(backend: str) -> Lab:
    lab: type[Lab] = getattr(import_module(f"tensorstash.testing.labs.{backend}"), f"{backend.capitalize()}Lab")
    return lab()
