"""What all tests share: with what is compiled and without, and little to do for the collector."""

import gc
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorstash.host import native
from tensorstash.host.allocator import CHOICE

os.environ.setdefault(CHOICE, "leave")  # page faults would slow every test of a process that has once used a policy
os.environ["OMP_NUM_THREADS"] = "1"  # test processes share the cores, and threads that wait for work spin

LACKS = re.compile("could not import|No module named|not installed")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no script in search of doctests: those are in the package alone."""
    is_script = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return is_script or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with those that take long."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Leave alone what importing frameworks has made: to look through it takes longer than most tests."""
    set_aside()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Fail a test or a file that is skipped because a package is missing: the dependency group has all of them."""
    report = yield
    if report.skipped and LACKS.search(str(report.longrepr)):
        report.outcome = "failed"
    return report


pytest_runtest_makereport = pytest_make_collect_report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Leave alone what the tests of a file have imported, or have taken out of what was left alone: much at once."""
    yield
    if nextitem is None or nextitem.path != item.path or len(gc.get_objects()) > 50_000:
        set_aside()


def set_aside() -> None:
    """Free what is garbage, and have the collector look at nothing else that is there now."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test as where the package was installed without a C compiler."""
    monkeypatch.setattr(native, "functions", None)


@pytest.fixture(params=["compiled", "defined"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Run a test with what is compiled, and with what defines it."""
    if request.param == "defined":
        request.getfixturevalue("nothing_is_compiled")
    elif native.functions is None:
        pytest.skip("nothing is compiled here")
