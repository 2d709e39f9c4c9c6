"""What all tests share: which may be skipped, with what is compiled and without, little to do for the collector."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tensorstash import kernels
from tensorstash.host import native
from tests.forked_workers import pytest_configure, pytest_configure_node, pytest_xdist_setupnodes, shared
from tests.skips import print_skips, pytest_make_collect_report, pytest_runtest_makereport
from tests.sweeps import print_sweeps
from tests.warm import python

__all__ = [  # hooks of this folder
    "pytest_configure",
    "pytest_configure_node",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_xdist_setupnodes",
]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no script in search of doctests: those are in the package alone."""
    is_script = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return is_script or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Look for no garbage while frameworks are imported: a fifth of that time, and hardly anything is found."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with those that take long."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Leave alone what importing frameworks has made: to look through it takes longer than most tests."""
    set_aside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Leave alone what the tests of a file have imported, or have taken out of what was left alone."""
    yield
    if nextitem is None or nextitem.path != item.path:
        set_aside()


def set_aside() -> None:
    """Free what is garbage, and have the collector look at nothing else that is there now."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was skipped and why, and what the sweeps over operators compared."""
    print_skips(terminalreporter)
    print_sweeps(terminalreporter)


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test as where the package was installed without a C compiler."""
    monkeypatch.setattr(native, "functions", None)
    monkeypatch.setattr(kernels, "active", kernels.DEFINED)


@pytest.fixture(params=["compiled", "defined"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Run a test with what is compiled, and with what defines it."""
    if request.param == "defined":
        request.getfixturevalue("nothing_is_compiled")
    elif native.functions is None:
        pytest.skip("nothing is compiled here")


@pytest.fixture(scope="session")
def warm(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Return the path of a Python that has imported modules, started once, by their names and variables to be added.

    Where the processes of a run share one that has imported the first of them, it may lack the others.
    """
    known = shared(request.config)
    with ExitStack() as stack:

        @cache
        def started(*modules: str, **variables: str) -> str:
            if modules[0] in known and not variables:
                return known[modules[0]]
            return stack.enter_context(python(*modules, environment=os.environ | variables))

        yield started
