"""The processes that run the tests of one run are forked from one that has imported what most tests import.

Each would import the same for itself, and where nothing is compiled to bytecode yet, compile the same at the same time.
"""

import os
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from tests.warm import python

IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "paddle",
    "matplotlib.pyplot",
)
"""What takes more than a second to import, and starts no thread."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Have the processes forked."""
    stack = ExitStack()
    config.add_cleanup(stack.close)
    # What Paddle says while it is imported is no business of a test.
    path = stack.enter_context(python(*IMPORTED, environment={**os.environ, "GLOG_minloglevel": "3"}))
    for spec in specs:
        spec.python = path


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process which Python it is."""
    node.workerinput["python"] = sys.executable


def pytest_configure(config: pytest.Config) -> None:
    """Start new processes from where they have imported nothing."""
    sys.executable = getattr(config, "workerinput", {}).get("python", sys.executable)
