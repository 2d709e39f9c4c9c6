"""Policies as plain data: dictionaries, TOML, JSON and YAML files, one line of text.

The wire form of a component is flat: its name and its fields, as in ``{"name": "quantize", "bits": 4}``. The values
of a field follow from its annotation, so that plug-ins write nothing: bool, int, float, str, Literal, None, a component
(``Codec``, ``StoreConfig``, ``Selector``, ``HookPolicy``), a dataclass of such fields, unions of these, and tuples
``tuple[X, ...]``. Where a component is expected, one line of text will do; where a policy is, also a codec or a store.

Laws: ``from_dict(to_dict(policy)) == policy`` and ``eval(repr(policy)) == policy``. Reading a configuration imports
no framework and opens nothing.
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from tensorstash.config.reading import read_policy
from tensorstash.config.writing import to_dict, walk
from tensorstash.errors import ConfigError, MissingDependencyError
from tensorstash.policies import Policy
from tensorstash.policies.plan import HookPolicy

__all__ = ["from_dict", "parse", "policy_argument", "to_dict", "walk"]


def from_dict(data: Mapping[str, object]) -> HookPolicy:
    """Return the policy that :func:`to_dict` wrote, or one written by hand; fields may be left at their defaults.

    Args:
        data: a name and the fields of that policy; any mappings and sequences, such as those of OmegaConf.

    Raises:
        ConfigError: an unknown name or key, a missing key, or a value of the wrong kind, each with its dotted path.
        MissingDependencyError: the library behind a name is not installed.

    >>> from_dict({"name": "chain", "steps": [{"name": "quantize", "bitz": 4}]})
    Traceback (most recent call last):
    tensorstash.errors.ConfigError: policy.steps[0].bitz: unknown key; did you mean 'bits'? Known: bits, \
group_size, rounding, seed
    """
    return read_policy(data, "policy")


def parse(text: str) -> HookPolicy:
    """Return the policy that one line of text describes; :mod:`tensorstash.config.text` has the grammar.

    Raises:
        ConfigError: as for :func:`from_dict`, or the text does not follow the grammar.
        MissingDependencyError: the library behind a name is not installed.

    >>> parse("pack_masks | disk_spill:budget=2GiB")
    Chain(steps=(PackMasks(), DiskSpill(directory=None, budget=2147483648)))
    """
    if not isinstance(text, str):
        raise ConfigError(f"policy: got {text!r}, expected text such as 'quantize:bits=4 | compress'")
    return read_policy(text, "policy")


def policy_argument(text: str) -> HookPolicy:
    """Return the policy of a command-line option, as :func:`parse` does: a ``type`` for :mod:`argparse`.

    Raises:
        argparse.ArgumentTypeError: with the message of :func:`parse`, whose own errors ``argparse`` would not show.

    >>> import argparse
    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--policy", type=policy_argument)
    >>> parser.parse_args(["--policy", "keep"]).policy
    Keep()
    """
    try:
        return parse(text)
    except (ConfigError, MissingDependencyError) as error:
        raise ArgumentTypeError(str(error)) from error


def _core_schema(cls: type[Policy], source: object, handler: object, /) -> dict[str, Any]:
    """Tell pydantic how fields of this type are read and written: an object, plain data, or one line of text."""

    def read(value: object) -> Policy:
        made = value if isinstance(value, Policy) else read_policy(value, cls.__name__)
        if not isinstance(made, cls):
            raise ConfigError(f"{cls.__name__}: got {made!r}, expected a {cls.__name__}")
        return made

    return {
        "type": "function-plain",
        "function": {"type": "no-info", "function": read},
        "serialization": {"type": "function-plain", "function": to_dict},
        "json_schema_input_schema": {"type": "any"},
    }


# Policies must not import their readers.
Policy.__get_pydantic_core_schema__ = classmethod(_core_schema)  # type: ignore[attr-defined]
