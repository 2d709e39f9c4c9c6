"""Say what a model saves for backward, without training it: by module and dtype.

tensorstash estimate MODULE:CALLABLE [--json]

The callable returns a model and what to call it with, as a tuple. On PyTorch nothing is computed; make the model inside
of `with torch.device("meta")` and it takes no memory either. MODULE is imported from the current folder.
"""

import argparse
import json

from tensorstash.cli.plan import add_target, called, model_and_inputs
from tensorstash.errors import ConfigError
from tensorstash.planner.estimate import estimate


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    add_target(parser)


def main(options: argparse.Namespace) -> int:
    """Print the table."""
    given = model_and_inputs(called(options.target)())
    if given is None:
        raise ConfigError(f"{options.target}: expected that it returns a model and its inputs: `return model, batch`")
    model, inputs = given
    found = estimate(model, *inputs)
    print(json.dumps(found.to_dict(), indent=1) if options.json else found)
    return 0
