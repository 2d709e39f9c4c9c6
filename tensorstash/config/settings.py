"""All that a scope is given, out of one file."""

import os
from collections.abc import Mapping, Sequence
from os.path import basename
from typing import BinaryIO, Required, TypedDict

from tensorstash.config.files import is_file_name, read_table
from tensorstash.config.reading import read_fields, read_policy
from tensorstash.errors import ConfigError, say
from tensorstash.policies.limits import Limits
from tensorstash.policies.plan import HookPolicy
from tensorstash.sizes import parse_bytes

POLICY_VARIABLE = "TENSORSTASH_POLICY"
"""A policy as one line of text, or the path of a file with settings."""


class Settings(TypedDict, total=False):
    """Arguments of ``stash`` and ``wrap``; those that a file does not set are not there.

    >>> from tensorstash.policies import Keep
    >>> Settings(policy=Keep(), min_bytes=4096)
    {'policy': Keep(), 'min_bytes': 4096}
    """

    policy: Required[HookPolicy]
    limits: Limits
    min_bytes: int


def load_settings(source: str | os.PathLike[str] | BinaryIO) -> Settings:
    """Return policy, limits and ``min_bytes`` of a file, as arguments: ``stash(**load_settings("policy.toml"))``.

    ::

        policy = "recompute | disk_spill"
        min_bytes = "256KiB"

        [limits]
        in_flight = "64MiB"
        ahead = "128MiB"

    Args:
        source: as for :func:`~tensorstash.load`.

    Raises:
        ConfigError: as for :func:`~tensorstash.load`.
        MissingDependencyError: the library behind a name is not installed, or PyYAML.
        OSError: the file cannot be read.

    >>> import io
    >>> load_settings(io.BytesIO(b'policy = "keep"\\nmin_bytes = "1MiB"'))
    {'policy': Keep(), 'min_bytes': 1048576}
    """
    place, data = read_table(source)
    settings = Settings(policy=read_policy(data["policy"], f"{place}: policy"))
    if "limits" in data:
        settings["limits"] = read_fields(Limits, data["limits"], f"{place}: limits")
    if "min_bytes" in data:
        settings["min_bytes"] = parse_bytes(data["min_bytes"], path=f"{place}: min_bytes")
    return settings


def judge_variable(environment: Mapping[str, str], command: Sequence[str]) -> None:
    """Say so if a policy is in the environment of a program that no launcher has started, and that is no worker."""
    is_launched = any(word == "tensorstash" or word.startswith("tensorstash.cli") for word in map(basename, command))
    if environment.get(POLICY_VARIABLE) and not is_launched and "--multiprocessing-fork" not in command:
        say(f"{POLICY_VARIABLE} is set and has no effect; start the program with `python -m tensorstash SCRIPT`")


def settings_of(text: str, path: str) -> Settings:
    """Return the settings of a file, if the text ends like the name of one, or those of a line that is a policy.

    Raises:
        ConfigError: as for :func:`load_settings`, or the file cannot be read.
        MissingDependencyError: as for :func:`load_settings`.

    >>> settings_of("compress:level=3", "--policy")
    {'policy': Compress(level=3, min_ratio=1.25)}
    """
    if not is_file_name(text):
        return Settings(policy=read_policy(text, path))
    try:
        return load_settings(text)
    except OSError as error:
        raise ConfigError(f"{path}: {text}: {error.strerror}") from error
