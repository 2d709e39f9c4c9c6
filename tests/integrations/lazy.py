"""Modules that take seconds to import, and that all test processes would import to collect tests of one of them."""

from importlib import import_module
from typing import Any


class Lazy:
    """A module that is imported when the first test needs it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest looks for such in all that it finds
            raise AttributeError(attribute)
        return getattr(import_module(self.name), attribute)
