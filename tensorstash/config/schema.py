"""Kinds of values of a field: the origin of components, and names for messages."""

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from tensorstash.policies import Policy
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Codec, Selector, StoreConfig

GROUPS: dict[Any, tuple[str, ...]] = {
    Policy: ("policies", "codecs", "stores"),
    HookPolicy: ("policies", "codecs", "stores"),
    Codec: ("codecs",),
    StoreConfig: ("stores",),
    Selector: ("selectors",),
}
"""The registry groups that a field of this annotation takes its components from, the first one before the others."""

SINGULAR = {"policies": "policy", "codecs": "codec", "stores": "store", "selectors": "selector"}
SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def in_words(annotation: Any) -> str:
    """Return the kinds of values of an annotation, in words; empty where only Python code can give one.

    >>> in_words(int | str | None), in_words(tuple[Selector, ...])
    ('a whole number or text', 'a list of: a selector (a table with a name, or text)')
    """
    if annotation in GROUPS:
        return f"a {SINGULAR[GROUPS[annotation][0]]} (a table with a name, or text)"
    members = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(words for member in members if (words := in_words(member)))
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, members))
    if get_origin(annotation) is tuple:
        return f"a list of: {in_words(members[0])}"
    if is_dataclass(annotation):
        return f"a table with {', '.join(field.name for field in fields(annotation))}"
    return SCALARS.get(annotation, "")
