"""Configuration files: TOML, JSON and YAML, told by their suffix."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from tensorstash.errors import ConfigError, MissingDependencyError
from tensorstash.registry import did_you_mean

SETTINGS = ("policy", "limits", "min_bytes")
"""Keys of a settings file."""


def read_table(source: str | os.PathLike[str] | BinaryIO) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a file, for messages, and its table.

    Args:
        source: the path of a file, or a file opened for reading bytes, which is left open.

    Raises:
        ConfigError: it is of another format, holds no policy, or other keys than :data:`SETTINGS`.
        MissingDependencyError: it is YAML, and PyYAML is not installed.
        OSError: it cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return read_table(file)
    place = str(getattr(source, "name", "TOML"))
    kind, read = _readers().get(os.path.splitext(place)[1].lower(), ("TOML", tomllib.load))
    try:
        data = read(source)
    except ValueError as error:
        raise ConfigError(f"{place}: not {kind}: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{place}: got {data!r}, expected a table with the key 'policy'")
    for key in data:
        if key not in SETTINGS:
            raise ConfigError(f"{place}: {key}: unknown key; {did_you_mean(key, SETTINGS)}")
    if "policy" not in data:
        raise ConfigError(f"{place}: policy: missing; expected a table, or text such as 'quantize:bits=4 | compress'")
    return place, data


def is_file_name(text: str) -> bool:
    """Whether a text names a file of settings, and is no line that describes a policy.

    >>> is_file_name("conf/policy.yaml"), is_file_name("compress | disk_spill")
    (True, False)
    """
    return os.path.splitext(text)[1].lower() in (".toml", *_readers())


def _readers() -> dict[str, tuple[str, Callable[[BinaryIO], Any]]]:
    return {".json": ("JSON", json.load), ".yaml": ("YAML", _load_yaml), ".yml": ("YAML", _load_yaml)}


def _load_yaml(file: BinaryIO) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError(f"{file.name}: YAML needs PyYAML; pip install pyyaml, or use TOML") from error
    try:
        return yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
