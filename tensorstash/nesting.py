"""How deep components may lie within one another: far deeper than anybody needs, and less than Python can follow."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from tensorstash.errors import ConfigError

DEEPEST = 64
"""Components within components: each takes a few calls of the some thousand that Python nests."""


def require_shallow(value: object, *, path: str) -> None:
    """Check that components, or the tables that describe them, are nested no deeper than :data:`DEEPEST`.

    Args:
        value: a component, or plain data.
        path: where it stands, for the message.

    Raises:
        ConfigError: they are.
    """
    level = {id(value): (value, 0)}
    lists = 0  # which may hold themselves
    while level and lists < 4 * DEEPEST and max(depth for _, depth in level.values()) <= DEEPEST:
        inner = [(part, depth + _nests(one)) for one, depth in level.values() for part in _parts(one)]
        level = {id(part): (part, depth) for part, depth in sorted(inner, key=_depth)}
        lists += 1
    if level:
        raise ConfigError(
            f"{path}: got components nested more than {DEEPEST} deep, expected fewer; write a chain as one list of "
            f"steps, and a route as one list of rules"
        )


def _depth(part: tuple[object, int]) -> int:
    return part[1]


def _nests(value: object) -> bool:
    return isinstance(value, Mapping) or is_dataclass(value)


def _parts(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)]
    return []
