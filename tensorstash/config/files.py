"""All that a scope is given, out of one file: TOML, JSON or YAML, told by its suffix."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from os.path import basename
from typing import Any, BinaryIO, Required, TypedDict

from tensorstash.config.reading import is_file_name, read_policy, read_value
from tensorstash.errors import ConfigError, MissingDependencyError, say
from tensorstash.policies.limits import Limits
from tensorstash.policies.plan import HookPolicy
from tensorstash.policies.route import AUTO
from tensorstash.registry import did_you_mean
from tensorstash.sizes import BudgetSize, budget_of, parse_bytes

POLICY_VARIABLE = "TENSORSTASH_POLICY"
"""A policy as one line of text, or the path of a file with settings."""


class Settings(TypedDict, total=False):
    """Arguments of ``stash`` and ``wrap``; those that a file does not set are not there.

    >>> Settings(policy=read_policy("keep", "policy"))
    {'policy': Keep()}
    """

    policy: Required[HookPolicy]
    budget: BudgetSize | None
    limits: Limits
    min_bytes: int


def load_settings(source: str | os.PathLike[str] | BinaryIO) -> Settings:
    """Return the settings of a file, as arguments: ``stash(**load_settings("policy.toml"))``.

    A file has a policy, or a budget for the policy ``"auto"``, and may set ``limits`` and ``min_bytes``.

    Args:
        source: the path of a file (``.json``, ``.yaml`` and ``.yml`` by their names, all else is TOML), or a file
            opened for reading bytes, which is left open.

    Raises:
        ConfigError: as for :func:`~tensorstash.from_dict`; the file is of another format, has neither a policy nor a
            budget, or has more.
        MissingDependencyError: the library behind a name is not installed, or PyYAML.
        OSError: the file cannot be read.

    >>> import io
    >>> load_settings(io.BytesIO(b'policy = "keep"\\nbudget = "6GiB"\\nmin_bytes = "1MiB"'))
    {'policy': Keep(), 'budget': 6442450944, 'min_bytes': 1048576}
    """
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return load_settings(file)
    place = str(getattr(source, "name", "TOML"))
    suffix = os.path.splitext(place)[1].lower().replace(".yml", ".yaml")
    readers: dict[str, Callable[[BinaryIO], Any]] = {".json": json.load, ".yaml": _load_yaml}
    read: Callable[[BinaryIO], Any] = readers.get(suffix, tomllib.load)
    try:
        data = read(source)
    except ValueError as error:
        raise ConfigError(f"{place}: not {'TOML' if read is tomllib.load else suffix[1:].upper()}: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{place}: got {data!r}, expected a table with the key 'policy'")
    for key in data:
        if key not in Settings.__annotations__:
            raise ConfigError(f"{place}: {key}: unknown key; {did_you_mean(key, Settings.__annotations__)}")
    if not {"policy", "budget"} & data.keys():
        raise ConfigError(f"{place}: policy: missing; expected a table, or text such as 'quantize:bits=4 | compress'")
    settings = Settings(policy=read_policy(data.get("policy", AUTO), f"{place}: policy"))
    if "budget" in data:
        settings["budget"] = budget_of(data["budget"], f"{place}: budget")
    if "limits" in data:
        settings["limits"] = read_value(data["limits"], Limits, f"{place}: limits")
    if "min_bytes" in data:
        settings["min_bytes"] = parse_bytes(data["min_bytes"], path=f"{place}: min_bytes")
    return settings


def judge_variable(environment: Mapping[str, str], command: Sequence[str]) -> None:
    """Say so if a policy is in the environment of a program that no launcher has started, and that is no worker."""
    is_launched = any(word == "tensorstash" or word.startswith("tensorstash.cli") for word in map(basename, command))
    if environment.get(POLICY_VARIABLE) and not is_launched and "--multiprocessing-fork" not in command:
        say(f"{POLICY_VARIABLE} is set and has no effect; start the program with `python -m tensorstash SCRIPT`")


def settings_of(text: str, path: str) -> Settings:
    """Return the settings of a file, if the text ends like the name of one, or those of a line that is a policy."""
    if not is_file_name(text):
        return Settings(policy=read_policy(text, path))
    try:
        return load_settings(text)
    except OSError as error:
        raise ConfigError(f"{path}: {text}: {error.strerror}") from error


def _load_yaml(file: BinaryIO) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError(f"{file.name}: YAML needs PyYAML; pip install pyyaml, or use TOML") from error
    try:
        return yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
