"""Policies as plain data: dictionaries, TOML files, one line of text.

The wire form of a component is flat: its name and its fields, as in ``{"name": "quantize", "bits": 4}``. What a field
may hold follows from its annotation, so that plug-ins write nothing: bool, int, float, str, Literal, None, a component
(``Codec``, ``StoreConfig``, ``Selector``, ``HookPolicy``), a dataclass of such fields, unions of these, and tuples
``tuple[X, ...]``.

Where a policy is expected, the name of a codec or a store stands for ``Encode`` or ``StoreIn`` of it. Where a
component is expected, one line of text will do (:mod:`tensorstash.config.text` has the grammar)::

    quantize:bits=4 | zstd:level=9 | disk_spill:directory=/nvme/scratch,budget=40GiB

Laws: ``from_dict(to_dict(policy)) == policy`` and ``eval(repr(policy)) == policy``. Reading a configuration imports
no framework and opens nothing.
"""

import os
import tomllib
from collections.abc import Mapping
from typing import BinaryIO

from tensorstash.config.reading import read_policy
from tensorstash.config.text import written
from tensorstash.config.writing import to_dict, walk
from tensorstash.errors import ConfigError
from tensorstash.policies.plan import HookPolicy
from tensorstash.registry import did_you_mean

__all__ = ["format", "from_dict", "load", "parse", "to_dict", "walk"]


def from_dict(data: Mapping[str, object]) -> HookPolicy:
    """Return the policy that :func:`to_dict` wrote, or one written by hand; fields may be left at their defaults.

    Args:
        data: a name and the fields of that policy.

    Raises:
        ConfigError: an unknown name or key, a missing key, or a value of the wrong kind, each with its dotted path.
        MissingDependencyError: the library behind a name is not installed.

    >>> from_dict({"name": "chain", "steps": [{"name": "quantize", "bitz": 4}]})
    Traceback (most recent call last):
    tensorstash.errors.ConfigError: policy.steps[0].bitz: unknown key; did you mean 'bits'? Known: bits, budget, \
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

    >>> parse("compress:level=3 | disk_spill:budget=2KiB")
    Chain(steps=(Compress(level=3, min_ratio=1.1), DiskSpill(directory=None, budget=2048)))
    """
    if not isinstance(text, str):
        raise ConfigError(f"policy: got {text!r}, expected text such as 'quantize:bits=4 | compress'")
    return read_policy(text, "policy")


def format(policy: HookPolicy) -> str:  # noqa: A001  (the inverse of parse, and named as its counterpart)
    """Return one line of text that :func:`parse` makes the same policy of.

    Args:
        policy: made of registered components.

    Raises:
        ConfigError: it has no one-line form, such as a route, or a component of it is not registered.

    >>> format(parse("quantize:bits=4 | disk_spill:budget=2KiB"))
    'quantize:bits=4,group_size=128,rounding=auto,seed=0 | disk_spill:budget=2048'
    """
    return written(to_dict(policy), "policy")


def load(source: str | os.PathLike[str] | BinaryIO) -> HookPolicy:
    """Return the policy of a TOML file, which holds it under the key ``policy``.

    ::

        [policy]
        name = "route"
        otherwise = "cpu_offload"

        [[policy.rules]]
        when = { name = "all", of = ["min_bytes:size=1MiB", { name = "dtypes", names = ["float32"] }] }
        use = "quantize:bits=4 | disk_spill:directory=/nvme/scratch,budget=40GiB"

    Args:
        source: the path of a file, or a file opened for reading bytes, which is left open.

    Raises:
        ConfigError: as for :func:`from_dict`, or the file is not TOML, or holds other keys.
        MissingDependencyError: the library behind a name is not installed.
        OSError: the file cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return load(file)
    place = getattr(source, "name", "TOML")
    try:
        data = tomllib.load(source)
    except ValueError as error:
        raise ConfigError(f"{place}: not TOML: {error}") from error
    for key in data:
        if key != "policy":
            raise ConfigError(f"{place}: {key}: unknown key; {did_you_mean(key, ['policy'])}")
    if not data:
        raise ConfigError(f"{place}: policy: missing; expected a table, or text such as 'quantize:bits=4 | compress'")
    return read_policy(data["policy"], f"{place}: policy")
