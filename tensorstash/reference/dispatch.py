"""The table of operations by name, so that tensor methods stand below the operations they call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TABLE: dict[str, Callable[..., Any]] = {}

OPERATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(_TABLE)
"""Every operation by name, read-only; filled while `ops` is imported."""


def register(name: str, operation: Callable[..., Any]) -> None:
    """Enter an operation.

    Raises:
        ValueError: the name is taken.
    """
    if name in _TABLE:
        raise ValueError(f"operation {name!r} is already registered")
    _TABLE[name] = operation


def composite(function: _Function) -> _Function:
    """Register an operation that is composed of others and therefore needs no formula of its own."""
    register(function.__name__, function)
    return function


def call(name: str, *operands: Any, **attributes: Any) -> Any:
    """Run the operation of that name."""
    return _TABLE[name](*operands, **attributes)
