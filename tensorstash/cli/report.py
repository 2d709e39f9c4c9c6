"""Show the statistics that a program has written: `tensorstash report stats.json`.

The file holds what `json.dump(session.stats().to_dict(), file)` has written, or `tensorstash run --stats FILE ...`.
With two files, the second first: what was done in between.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from tensorstash.engine.stats import Stats
from tensorstash.errors import ConfigError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("file", type=Path, help="the statistics")
    parser.add_argument("earlier", type=Path, nargs="?", help="statistics of the same run, written earlier")


def main(options: argparse.Namespace) -> int:
    """Print the statistics as a table."""
    stats = statistics(options.file)
    print(stats - statistics(options.earlier) if options.earlier else stats)
    return 0


def statistics(path: Path) -> Stats:
    """Return the statistics that a file holds.

    Args:
        path: of a file with what :meth:`~tensorstash.Stats.to_dict` gives, as JSON.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return _stats(table)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path}: holds no statistics ({type(error).__name__}: {error}); expected what "
            f"json.dump(session.stats().to_dict(), file) writes"
        ) from error


def _stats(table: dict[str, Any]) -> Stats:
    hints = get_type_hints(Stats)
    return Stats(**{name: _read(value, hints[name]) for name, value in table.items()})


def _read(value: Any, annotation: Any) -> Any:
    if get_origin(annotation) is Mapping:
        return {key: _read(each, get_args(annotation)[1]) for key, each in value.items()}
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation(**value)
    return value
