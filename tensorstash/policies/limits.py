"""Limits of the bytes that a session holds on the way, and of its waits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from tensorstash.errors import ConfigError
from tensorstash.host.budget import MOST_SHARE
from tensorstash.registry import did_you_mean
from tensorstash.sizes import parse_budget

AUTO = "auto"
"""For a number of bytes under way: a share of the saved bytes of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Byte budgets and timeout of a session. None of them changes a result, only memory and time.

    Args:
        in_flight: bytes of saved tensors that wait to be encoded and stored behind the computation; at the limit the
            forward pass waits. With 0, and for tensors larger than this, the work is done before ``pack`` returns.
            ``"auto"`` is a share of the largest step so far (:func:`~tensorstash.host.budget.share_of`).
        ahead: bytes that may be read back before backward asks for them, together with those that it has in its hands.
            With 0 nothing is. ``"auto"`` as for ``in_flight``.
        writers: threads that encode and store.
        readers: threads that load and decode.
        timeout_s: how long to wait for a store that does not answer before an error says so, in seconds.
        pinned: bytes of host memory to page-lock for copies from and to devices; by default all sessions of a process
            share its part of half of the machine's or container's. Tensors beyond it stay on their device.

    Raises:
        ConfigError: a value is none of these.

    >>> Limits(in_flight="64 MiB").in_flight
    67108864
    """

    in_flight: int | str = AUTO
    ahead: int | str = AUTO
    writers: int = 1
    readers: int = 1
    timeout_s: float = 600.0
    pinned: int | str | None = None

    def __post_init__(self) -> None:
        for field in ("in_flight", "ahead"):
            given = getattr(self, field)
            if given != AUTO:
                object.__setattr__(self, field, parse_budget(given, path=f"limits.{field}"))
        if self.pinned is not None:
            object.__setattr__(self, "pinned", parse_budget(self.pinned, path="limits.pinned"))
        for field in ("writers", "readers"):
            count = getattr(self, field)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ConfigError(f"limits.{field}: got {count!r}, expected a number of threads, 1 or more")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConfigError(f"limits.timeout_s: got {self.timeout_s!r}, expected seconds, more than 0")

    @property
    def in_flight_bytes(self) -> int:
        """The limit of bytes in flight as a number; the most that it may become where it is ``"auto"``."""
        return MOST_SHARE if self.in_flight == AUTO else int(self.in_flight)

    @property
    def ahead_bytes(self) -> int:
        """The limit of bytes read ahead as a number; the most that it may become where it is ``"auto"``."""
        return MOST_SHARE if self.ahead == AUTO else int(self.ahead)

    def given(self) -> dict[str, int]:
        """Return those limits of bytes under way that are numbers, by name."""
        return {name: int(given) for name in ("in_flight", "ahead") if (given := getattr(self, name)) != AUTO}

    @property
    def pinned_bytes(self) -> int | None:
        """The limit of page-locked host memory as a number; None for that of the process."""
        return None if self.pinned is None else int(self.pinned)


def limits_of(limits: object, caller: str) -> Limits:
    """Return limits that a user has passed to a caller; ConfigError if they are something else."""
    if not isinstance(limits, Limits):
        raise ConfigError(f"{caller}.limits: got {limits!r}, expected Limits, such as Limits(in_flight='64 MiB')")
    return limits


F = TypeVar("F", bound=Callable[..., Any])


def explains_arguments(function: F) -> F:
    """Return a function with an argument ``limits`` whose error about an unknown argument says where it belongs."""
    known = [name for name in signature(function).parameters if name != "self"]

    @wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        caller = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
        for name, value in named.items():
            if name in Limits.__dataclass_fields__:
                raise ConfigError(f"{caller}: {name} is a limit; write limits=Limits({name}={value!r})")
            if name not in known:
                raise ConfigError(f"{caller}: unknown argument {name!r}; {did_you_mean(name, known)}")
        return function(*args, **named)

    return called  # type: ignore[return-value]
