"""Run a few training steps under a budget, and print the plan that they have become.

tensorstash plan MODULE:CALLABLE --budget 6GiB [--plot FILE] [--save FILE] [--trace FILE]

The callable runs one training step, forward and backward, each time it is called; or it returns a model and what to
call it with, as a tuple, and the sum of what comes back is the loss. MODULE is imported from the current folder. The
budget is a size, or one line of text such as "budget:total=22GiB,allow=lossless+cast".
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorstash.api import DEFAULT_MIN_BYTES, stash
from tensorstash.backends import backend_of
from tensorstash.config import parse
from tensorstash.errors import ConfigError
from tensorstash.planner.plan import BudgetPlan
from tensorstash.policies import Budget
from tensorstash.registry import did_you_mean


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    add_target(parser)
    parser.add_argument("--budget", required=True, metavar="SIZE|LINE", help="how much memory there is")
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="that are run, 2 or more (default: 8)")
    parser.add_argument("--min-bytes", default=DEFAULT_MIN_BYTES, metavar="SIZE", help="smaller tensors are kept")
    parser.add_argument("--plot", metavar="FILE", help="draw memory over one step")
    parser.add_argument("--save", metavar="FILE", help="write the plan as a policy, in TOML")
    parser.add_argument("--trace", metavar="FILE", help="write one step for Perfetto")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add what is to be run, and ``--json``."""
    parser.add_argument("target", metavar="MODULE:CALLABLE", help="runs a step, or returns a model and its inputs")
    parser.add_argument("--json", action="store_true", help="for programs")


def main(options: argparse.Namespace) -> int:
    """Print the plan."""
    budget = parse(options.budget) if options.budget.startswith(Budget.name) else Budget(options.budget)
    if not isinstance(budget, Budget):
        raise ConfigError(f"plan.budget: got {options.budget!r}, expected a size such as '6GiB'")
    plan = planned(called(options.target), budget, max(2, options.steps), options.min_bytes)
    if options.save:
        plan.save(options.save, budget.tiers())
    if options.plot:
        plan.plot(options.plot)
    if options.trace:
        Path(options.trace).write_text(json.dumps(plan.to_chrome_trace()), encoding="utf-8")
    print(json.dumps(plan.to_dict(), indent=1) if options.json else plan)
    return 1 if plan.status == "impossible" else 0


def called(target: str) -> Callable[[], Any]:
    """Return what ``MODULE:CALLABLE`` names; the module may lie in the current folder.

    Args:
        target: as it was typed.

    Raises:
        ConfigError: there is no such module, or nothing of the name in it that can be called.
    """
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise ConfigError(f"got {target!r}, expected MODULE:CALLABLE, such as train:step")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or name.partition(".")[0] != error.name.partition(".")[0]:
            raise
        raise ConfigError(f"{target}: no module {error.name!r} here or among what is installed") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        near = {each for each in vars(module) if callable(getattr(module, each))}
        raise ConfigError(f"{target}: {name} has no callable {attribute!r}; {did_you_mean(attribute, near)}")
    return found  # type: ignore[no-any-return]


def model_and_inputs(returned: object) -> tuple[Any, tuple[Any, ...]] | None:
    """Return a model and its inputs if that is what a callable has returned; None otherwise.

    Args:
        returned: by it.
    """
    if not isinstance(returned, tuple | list) or not returned or not callable(returned[0]):
        return None
    return returned[0], tuple(returned[1:])


def planned(step: Callable[[], Any], budget: Budget, steps: int, min_bytes: int | str) -> BudgetPlan:
    """Run steps under a budget, and return the plan.

    Args:
        step: runs one, or returns a model and its inputs.
        budget: to be held.
        steps: how many are run.
        min_bytes: smaller tensors are kept.

    Raises:
        StashError: the steps have saved nothing.
    """
    given = model_and_inputs(step())
    if given is not None:
        model, inputs = given
        session = stash(budget, framework=backend_of(model).name, min_bytes=min_bytes)
        for _ in range(steps):
            with session:
                output = model(*inputs)
            _loss(output).backward()
            del output
        return session.plan()
    session = stash(budget, min_bytes=min_bytes)
    for _ in range(steps):
        with session:
            step()
    return session.plan()


def _loss(output: Any) -> Any:
    while not hasattr(output, "sum"):
        output = next(iter(output.values())) if hasattr(output, "values") else output[0]
    return output.sum()
