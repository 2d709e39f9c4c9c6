"""From objects to plain data, by their dataclass fields."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from tensorstash.errors import ConfigError
from tensorstash.policies import Policy
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Codec, Selector, StoreConfig
from tensorstash.registry import lookup

GROUPS: dict[Any, tuple[str, ...]] = {
    Policy: ("policies", "codecs", "stores"),
    HookPolicy: ("policies", "codecs", "stores"),
    Codec: ("codecs",),
    StoreConfig: ("stores",),
    Selector: ("selectors",),
}
"""The registry groups that a field of this annotation takes its components from, the first one before the others."""


def to_dict(policy: HookPolicy) -> dict[str, Any]:
    """Return the policy in dictionaries, lists, numbers and texts, as JSON and TOML know them.

    Args:
        policy: made of registered components.

    Raises:
        ConfigError: a component is not registered, or a field holds something that has no plain form.

    >>> from tensorstash.policies import Quantize
    >>> to_dict(Quantize(4))
    {'name': 'quantize', 'bits': 4, 'group_size': 128, 'rounding': 'auto', 'seed': 0}
    """
    if isinstance(policy, type) or not (isinstance(policy, HookPolicy) and hasattr(policy, "__dataclass_fields__")):
        raise ConfigError(f"policy: got {policy!r}, expected a policy that is a dataclass")
    return _table(policy, "policy")


def walk(policy: object) -> Iterator[object]:
    """Yield the policy and every component inside it, outermost first: selectors, rules, policies, codecs, stores."""
    if isinstance(policy, tuple):
        for item in policy:
            yield from walk(item)
    elif is_dataclass(policy):
        yield policy
        for field in fields(policy):
            yield from walk(getattr(policy, field.name))


def _table(component: Any, path: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    group = next((groups[0] for protocol, groups in GROUPS.items() if isinstance(component, protocol)), None)
    if group is not None:
        table["name"] = component.name
        try:
            registered = lookup(group, component.name)
        except ConfigError as error:
            raise ConfigError(f"{path}: {type(component).__qualname__} is not registered: {error}") from error
        if registered is not type(component):
            why = f"the name {component.name!r} of {group} stands for {registered!r}"
            raise ConfigError(f"{path}: got {component!r}, but {why}")
    for field in fields(component):
        value = getattr(component, field.name)
        if value is None and field.default is not None:
            raise ConfigError(f"{path}.{field.name}: None has no plain form, and leaving it out means another value")
        if value is not None and field.init:
            table[field.name] = _plain(value, f"{path}.{field.name}")
    return table


def _plain(value: object, path: str) -> object:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item, f"{path}[{place}]") for place, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return _table(value, path)
    raise ConfigError(f"{path}: got {value!r}, which has no plain form")
