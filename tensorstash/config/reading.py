"""From plain data to objects, by the annotations of dataclass fields."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from os import PathLike, fspath
from os.path import splitext
from re import split
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tensorstash.config.text import BARE, Text, split_steps
from tensorstash.config.writing import GROUPS
from tensorstash.errors import ConfigError, MissingDependencyError
from tensorstash.policies import Chain, Encode, StoreIn
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.policy import require_policy
from tensorstash.policies.route import AUTO, automatic
from tensorstash.protocols import Codec
from tensorstash.registry import did_you_mean, lookup, names

_SINGULAR = {"policies": "policy", "codecs": "codec", "stores": "store", "selectors": "selector"}
_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def read_policy(value: object, path: str) -> HookPolicy:
    """Return the policy that plain data or a line of text describes; ``path`` is its place, for messages."""
    if value == AUTO:
        return automatic()
    policy = _component(value, HookPolicy, path)
    assert isinstance(policy, HookPolicy)
    return policy


def policy_of(policy: object, caller: str) -> HookPolicy:
    """Return a policy that the user passed to a caller, as one or as a line of text."""
    if isinstance(policy, str | PathLike):
        return read_policy(fspath(policy), f"{caller}.policy")
    return require_policy(policy, path=caller)


def _component(value: object, protocol: Any, path: str) -> object:
    groups = GROUPS[protocol]
    kind = _SINGULAR[groups[0]]
    if isinstance(value, str):
        steps = split_steps(value, path)
        if len(steps) == 1:
            return _component(steps[0], protocol, path)
        if kind != "policy":
            raise ConfigError(f"{path}: got {len(steps)} steps in {str(value)!r}, expected one {kind}")
        return _build(Chain, {"steps": steps}, path)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: got {value!r}, expected {_in_words(protocol)}")
    arguments = dict(value)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"{path}.name: {'missing' if name is None else f'got {name!r}'}; expected the name of a {kind}"
        )
    known = {choice: group for group in reversed(groups) for choice in names(group)}
    if name not in known:
        raise ConfigError(f"{path}: {_unknown(kind, name, groups[0], known)}")
    with _place(path):
        found = lookup(known[name], name)
    made = _build(found, arguments, path)
    if known[name] != groups[0]:
        return Encode(made) if isinstance(made, Codec) else StoreIn(made)  # type: ignore[arg-type]
    if not isinstance(made, protocol):
        raise ConfigError(f"{path}: {made!r} does not implement {protocol.__name__}")
    return made


def _in_words(annotation: Any) -> str:
    """Return the kinds of values of an annotation, in words; empty where only Python code can give one."""
    if annotation in GROUPS:
        return f"a {_SINGULAR[GROUPS[annotation][0]]} (a table with a name, or text)"
    members = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(words for member in members if (words := _in_words(member)))
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, members))
    if get_origin(annotation) is tuple:
        return f"a list of: {_in_words(members[0])}"
    if is_dataclass(annotation):
        return f"a table with {', '.join(field.name for field in fields(annotation))}"
    return _SCALARS.get(annotation, "")


def is_file_name(text: str) -> bool:
    """Whether a text names a file of settings, and is no line that describes a policy."""
    return splitext(text)[1].lower() in (".toml", ".json", ".yaml", ".yml")


def _unknown(kind: str, name: str, group: str, known: Iterable[str]) -> str:
    """Return the message about a name that no component has."""
    parts = [part.strip() for part in split(r"->|[,;>+&]", name)]
    if kind == "policy" and len(parts) > 1 and any(part.partition(":")[0].strip() in known for part in parts):
        return f"got {name!r}; steps are joined by |, so write {' | '.join(parts)!r}"
    if kind == "policy" and is_file_name(name):
        return f"got the file {name!r}, expected a policy; pass **tensorstash.load_settings({name!r})"
    return f"unknown {kind} {name!r}; {did_you_mean(name, known, names(group))}"


def _bare(data: Mapping[str, object], cls: type, first: str | None) -> str:
    """Return the message about a value without a key."""
    step, value = getattr(cls, "name", cls.__name__), str(data[BARE])
    if value.partition(":")[0].strip() in names("policies"):
        options = ",".join(f"{key}={text}" for key, text in data.items() if key != BARE)
        steps = f"{step}:{options} | {value}" if options else f"{step} | {value}"
        return f"got {value!r} behind a comma; steps are joined by |, so write {steps!r}"
    cure = f"; write {step}:{first}={value}" if first and value != first else ""
    return f"got {value!r}, expected key=value{cure}"


def _build(cls: type, data: Mapping[str, object], path: str) -> object:
    if not is_dataclass(cls):
        raise ConfigError(f"{path}: {cls.__qualname__} is not a dataclass and cannot be configured")
    known = {field.name: field for field in fields(cls) if field.init}
    hints = get_type_hints(cls)
    for key in data:
        if key == BARE:
            raise ConfigError(f"{path}: {_bare(data, cls, next(iter(known), None))}")
        if key not in known:
            raise ConfigError(f"{path}.{key}: unknown key; {did_you_mean(key, known)}")
    for field in known.values():
        if field.name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{path}.{field.name}: missing; expected {_in_words(hints[field.name])}")
    arguments = {key: read_value(value, hints[key], f"{path}.{key}") for key, value in data.items()}
    with _place(path):
        return cls(**arguments)


def read_value(value: object, annotation: Any, path: str) -> Any:
    """Return what plain data at a path, for messages, is as a value of an annotation."""
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation in GROUPS:
        return _component(value, annotation, path)
    if origin in (Union, UnionType):
        return _read_union(value, annotation, path)
    if origin is Literal:
        for member in members:
            if (type(value), value) == (type(member), member) or (isinstance(value, Text) and value == str(member)):
                return member
        raise ConfigError(f"{path}: got {value!r}, expected {_in_words(annotation)}")
    if origin is tuple and members[1:] == (...,):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return tuple(read_value(item, members[0], f"{path}[{place}]") for place, item in enumerate(value))
    elif annotation in _SCALARS:
        converted = _scalar(value, annotation)
        if converted is not None:
            return converted
    elif isinstance(annotation, type) and is_dataclass(annotation):
        if isinstance(value, Mapping):
            return _build(annotation, value, path)
    else:
        raise ConfigError(f"{path}: a field of type {annotation} cannot be configured; build the object in Python")
    raise ConfigError(f"{path}: got {value!r}, expected {_in_words(annotation)}")


def _read_union(value: object, annotation: Any, path: str) -> object:
    members = get_args(annotation)
    some = [member for member in members if member is not NoneType]
    if value is None and len(some) < len(members):
        return None
    if len(some) == 1:
        return read_value(value, some[0], path)
    for member in sorted(some, key=lambda member: member is str):
        with suppress(ConfigError):
            return read_value(value, member, path)
    raise ConfigError(f"{path}: got {value!r}, expected {_in_words(annotation)}")


def _scalar(value: object, kind: type) -> object:
    """Return the value as that kind of scalar, or None if it is not one."""
    if isinstance(value, Text):
        if kind is bool:
            return {"true": True, "false": False}.get(value)
        with suppress(ValueError):
            return kind(value)
    elif type(value) is kind:
        return value
    elif kind is float and type(value) is int:
        return float(value)
    return None


@contextmanager
def _place(path: str) -> Iterator[None]:
    """Put the path in front of errors of the block."""
    try:
        yield
    except (ConfigError, MissingDependencyError) as error:
        raise type(error)(f"{path}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
