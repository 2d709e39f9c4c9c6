"""The budget that a user passes, and the bytes that it leaves for saved tensors."""

from typing import Any, Literal

from tensorstash.abilities import Backend, SupportsMemoryUse
from tensorstash.errors import BackendError, ConfigError, say
from tensorstash.host.pages import free_bytes, physical_bytes
from tensorstash.sizes import format_bytes, parse_budget

BudgetSize = int | Literal["auto"]
"""Bytes, or the memory that is free when the first tensor is saved."""

_MARGIN = 0.05
"""Part of the free memory that an automatic budget leaves free."""


def limit_of(budget: BudgetSize, backend: Backend[Any], device: str) -> int:
    """Return how many bytes of saved tensors may stay where they are.

    Args:
        budget: bytes; ``"auto"`` for the memory that is free when the first tensor is saved.
        backend: tells how much memory of a device is free.
        device: of the first saved tensor.

    Raises:
        BackendError: it is not known how much memory of the device is free.
    """
    if budget == "auto":
        return int((1 - _MARGIN) * _free_bytes(backend, device))
    if device == "cpu" and budget > physical_bytes():
        say(
            f"budget: {format_bytes(budget)} is more than the {format_bytes(physical_bytes())} of this machine, "
            "so that nothing leaves; pass budget='auto'"
        )
    return budget


def budget_of(budget: object, path: str) -> BudgetSize | None:
    """Return the budget that a user has passed.

    Args:
        budget: bytes, text with a unit, ``"auto"`` or None.
        path: name of the value, for the message.

    Raises:
        ConfigError: it is none of these.

    >>> budget_of("6 GiB", "stash.budget")
    6442450944
    >>> budget_of("6", "stash.budget")
    Traceback (most recent call last):
    tensorstash.errors.ConfigError: stash.budget: got '6', expected a size with a unit, such as '6GiB', or 'auto'
    """
    if budget is None:
        return None
    if budget == "auto":
        return "auto"
    is_bare = isinstance(budget, str) and budget.strip().isdecimal()
    if isinstance(budget, bool) or not isinstance(budget, int | str) or is_bare:
        raise ConfigError(f"{path}: got {budget!r}, expected a size with a unit, such as '6GiB', or 'auto'")
    return parse_budget(budget, path=path)


def _free_bytes(backend: Backend[Any], device: str) -> int:
    if device == "cpu":
        free = free_bytes()
    else:
        free = backend.free_bytes(device) if isinstance(backend, SupportsMemoryUse) else None
    if free is None:
        raise BackendError(
            f"budget: it is not known how much memory of {device} is free; pass the bytes that saved tensors may take "
            f"instead, such as budget='6GiB'"
        )
    return free
