"""The processes that run the tests of one run are forked from one that has imported what most tests import.

Each would import the same for itself, and where nothing is compiled to bytecode yet, compile the same at the same time.
They share processes that fork programs, too.
"""

import os
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from tests.warm import python

IMPORTED = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "paddle", "matplotlib.pyplot")
"""What takes long to import, starts no thread, and is nothing that pytest looks for before it was imported."""

PROGRAMS = {"torch": ("torch", "torch._dynamo"), "paddle": ("paddle",)}
"""What processes that fork programs have imported, by the framework that these use."""

STACK = pytest.StashKey[ExitStack]()
SHARED = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Have the processes forked."""
    config.stash[STACK] = ExitStack()
    config.add_cleanup(config.stash[STACK].close)
    # It compiles Paddle while the other one still compiles PyTorch.
    config.stash[SHARED] = {"paddle": config.stash[STACK].enter_context(python(*PROGRAMS["paddle"]))}
    # What Paddle says while it is imported is no business of a test.
    environment = {**os.environ, "GLOG_minloglevel": "3"}
    path = config.stash[STACK].enter_context(python(*IMPORTED, environment=environment))
    for spec in specs:
        spec.python = path


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process which Python it is, and which are shared: that of PyTorch starts now that it is compiled."""
    stash = node.config.stash
    if "torch" not in stash[SHARED]:
        stash[SHARED]["torch"] = stash[STACK].enter_context(python(*PROGRAMS["torch"]))
    node.workerinput.update(python=sys.executable, warm=stash[SHARED])


def pytest_configure(config: pytest.Config) -> None:
    """Start new processes from where they have imported nothing."""
    sys.executable = getattr(config, "workerinput", {}).get("python", sys.executable)


def shared(config: pytest.Config) -> dict[str, str]:
    """Return the paths of Pythons that have imported a framework, by its name, as far as this run has them."""
    found: dict[str, str] = getattr(config, "workerinput", {}).get("warm", {})
    return found
