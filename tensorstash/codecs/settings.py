"""Checks of a codec's fields, done when it is built."""

from collections.abc import Iterable

from tensorstash.errors import ConfigError


def check_choice(path: str, value: object, choices: Iterable[object]) -> None:
    """Raise unless ``value`` is one of ``choices``, of the same type.

    Args:
        path: the dotted path of the field, such as ``"affine.bits"``.

    Raises:
        ConfigError: it is not.
    """
    allowed = tuple(choices)
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ConfigError(f"{path}: got {value!r}, expected one of {', '.join(map(repr, allowed))}")


def check_integer(path: str, value: object, low: int, high: int | None = None) -> None:
    """Raise unless ``value`` is an int from ``low`` to ``high``, both included.

    Args:
        path: the dotted path of the field, such as ``"zstd.level"``.

    Raises:
        ConfigError: it is not.
    """
    if type(value) is not int or value < low or (high is not None and value > high):
        limits = f"{low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{path}: got {value!r}, expected a whole number, {limits}")


def check_ratio(path: str, value: object, low: float) -> None:
    """Raise unless ``value`` is a finite number of at least ``low``.

    Args:
        path: the dotted path of the field, such as ``"lossless.min_ratio"``.

    Raises:
        ConfigError: it is not.
    """
    if type(value) not in (int, float) or not low <= value < float("inf"):  # type: ignore[operator]
        raise ConfigError(f"{path}: got {value!r}, expected a finite number, {low} or more")
