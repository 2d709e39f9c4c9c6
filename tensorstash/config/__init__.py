"""Policies as plain data: dictionaries, TOML, JSON and YAML files, one line of text.

The wire form of a component is flat: its name and its fields, as in ``{"name": "quantize", "bits": 4}``. The values
of a field follow from its annotation, so that plug-ins write nothing: bool, int, float, str, Literal, None, a component
(``Codec``, ``StoreConfig``, ``Selector``, ``HookPolicy``), a dataclass of such fields, unions of these, and tuples
``tuple[X, ...]``.

Where a policy is expected, the name of a codec or a store stands for ``Encode`` or ``StoreIn`` of it. Where a
component is expected, one line of text will do (:mod:`tensorstash.config.text` has the grammar)::

    quantize:bits=4 | zstd:level=9 | disk_spill:directory=/nvme/scratch,budget=40GiB

Laws: ``from_dict(to_dict(policy)) == policy`` and ``eval(repr(policy)) == policy``. Reading a configuration imports
no framework and opens nothing.
"""

import os
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any, BinaryIO

from tensorstash.config.reading import read_as, read_policy
from tensorstash.config.settings import read_table
from tensorstash.config.writing import to_dict, walk
from tensorstash.errors import ConfigError, MissingDependencyError
from tensorstash.policies import Policy
from tensorstash.policies.plan import HookPolicy

__all__ = ["from_dict", "load", "parse", "policy_argument", "to_dict", "walk"]


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
    """Return the policy that one line of text describes.

    Args:
        text: such as ``"quantize:bits=4 | disk_spill:budget=2GiB"``; :mod:`tensorstash.config.text` has the grammar.

    Raises:
        ConfigError: as for :func:`from_dict`, or the text does not follow the grammar.
        MissingDependencyError: the library behind a name is not installed.

    >>> parse("pack_masks | disk_spill:budget=2GiB")
    Chain(steps=(PackMasks(), DiskSpill(directory=None, budget=2147483648)))
    """
    if not isinstance(text, str):
        raise ConfigError(f"policy: got {text!r}, expected text such as 'quantize:bits=4 | compress'")
    return read_policy(text, "policy")


def load(source: str | os.PathLike[str] | BinaryIO) -> HookPolicy:
    """Return the policy of a file, which holds it under the key ``policy``: TOML, or JSON or YAML by its suffix.

    ::

        [policy]
        name = "route"
        otherwise = "cpu_offload"

        [[policy.rules]]
        when = { name = "all", of = ["min_bytes:size=1MiB", { name = "dtypes", names = ["float32"] }] }
        use = "quantize:bits=4 | disk_spill:directory=/nvme/scratch,budget=40GiB"

    Args:
        source: the path of a file (``.json``, ``.yaml`` and ``.yml`` by their names, all else is TOML), or a file
            opened for reading bytes, which is left open.

    Raises:
        ConfigError: as for :func:`from_dict`, or the file is of another format, or holds other keys; one that sets
            limits too is for :func:`~tensorstash.load_settings`.
        MissingDependencyError: the library behind a name is not installed, or PyYAML.
        OSError: the file cannot be read.

    >>> import io
    >>> load(io.BytesIO(b'policy = "keep"'))
    Keep()
    """
    place, data = read_table(source)
    for key in data:
        if key != "policy":
            raise ConfigError(
                f"{place}: {key}: load returns the policy alone; use stash(**load_settings(file)), or wrap, to apply "
                f"the other settings too"
            )
    return read_policy(data["policy"], f"{place}: policy")


def policy_argument(text: str) -> HookPolicy:
    """Return the policy of a command-line option: a ``type`` for :mod:`argparse` that keeps the message.

    Args:
        text: one line, as of :func:`parse`.

    Raises:
        argparse.ArgumentTypeError: as :func:`parse` says, whose text ``argparse`` would not show.

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
    return {
        "type": "function-plain",
        "function": {"type": "no-info", "function": lambda value: read_as(cls, value, cls.__name__)},
        "serialization": {"type": "function-plain", "function": to_dict},
        "json_schema_input_schema": {"type": "any"},
    }


# Policies must not import their readers.
Policy.__get_pydantic_core_schema__ = classmethod(_core_schema)  # type: ignore[attr-defined]
