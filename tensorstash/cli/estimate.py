"""Count the bytes that a model saves for backward, and those that each policy leaves, without training it.

tensorstash estimate MODULE:CALLABLE [--json]

The callable returns a model and its inputs: `return model, batch`. A dictionary is passed by name, as Transformers take
batches. On PyTorch nothing is computed; make the model inside of `with torch.device("meta")` and it takes no memory
either. MODULE is imported from the current folder.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tensorstash.errors import ConfigError
from tensorstash.footprint import estimate
from tensorstash.registry import did_you_mean


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the verb."""
    parser.add_argument("target", metavar="MODULE:CALLABLE", help="returns a model and its inputs")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args(words)


def main(options: argparse.Namespace) -> int:
    """Print the answer, then the table."""
    given = called(options.target)()
    if not isinstance(given, tuple | list) or not given or not callable(given[0]):
        raise ConfigError(f"{options.target}: expected that it returns a model and its inputs: `return model, batch`")
    found = estimate(*given)
    print(json.dumps(found.to_dict(), indent=1) if options.json else found)
    return 0


def called(target: str) -> Callable[[], Any]:
    """Return the function that ``MODULE:CALLABLE`` names; the module may lie in the current folder."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise ConfigError(f"got {target!r}, expected MODULE:CALLABLE, such as train:made")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or name.partition(".")[0] != error.name.partition(".")[0]:
            raise
        raise ConfigError(f"{target}: no module {error.name!r} here or among the installed ones") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        near = {each for each in vars(module) if callable(getattr(module, each))}
        raise ConfigError(f"{target}: {name} has no callable {attribute!r}; {did_you_mean(attribute, near)}")
    return found  # type: ignore[no-any-return]
