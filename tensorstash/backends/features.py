"""Undocumented features of frameworks that the adapters need, listed in ``features.txt``, and the versions that have
them."""

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

from tensorstash.errors import MissingDependencyError, TensorStashWarning


class Feature(NamedTuple):
    """A private name of a framework, ``"module:attribute"``, its purpose, and the loss if the rest works without it."""

    path: str
    purpose: str
    without: str = ""


def is_there(path: str) -> bool:
    """Whether a name, or a module, can be imported."""
    try:
        resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


class Framework(NamedTuple):
    """A framework by its name for pip; all tests ran on ``newest`` last, and no version from ``below`` on is taken."""

    package: str
    oldest: str
    newest: str
    features: tuple[Feature, ...]
    below: str = ""

    @property
    def requirement(self) -> str:
        """The versions that work, for pip."""
        return f"{self.package}>={self.oldest}" + (f",<{self.below}" if self.below else "")

    @property
    def cure(self) -> str:
        """The same for people."""
        return f"versions that work: pip install '{self.requirement}' (last tested: {self.newest})"

    @property
    def lacks(self) -> list[Feature]:
        """The features that the installed version lacks; imports the framework."""
        return [each for each in self.features if not is_there(each.path)]


def _features(framework: str) -> tuple[Feature, ...]:
    listed = Path(__file__).with_name("features.txt").read_text("utf-8")
    rows = listed.partition(f"[{framework}]\n")[2].partition("\n\n")[0]
    return tuple(Feature(*row.split(" | ")) for row in rows.splitlines())


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework("torch", "2.8", "2.14", _features("torch")),
    "paddle": Framework("paddlepaddle", "3.3.1", "3.3.1", _features("paddle"), below="3.4"),
}
"""By the name of the backend, which is that of the module."""


def installed(name: str) -> str | None:
    """Return the version of a framework of :data:`FRAMEWORKS` that is installed, or None."""
    package = FRAMEWORKS[name].package
    for distribution in (package, f"{package}-gpu"):
        with suppress(PackageNotFoundError):
            return version(distribution)
    return None


@cache
def require(name: str) -> None:
    """Check that the framework of a backend, if it is installed, has the features that its adapter needs; imports it.

    Raises:
        MissingDependencyError: it lacks something or is too new; the message has the versions that work.
    """
    found = installed(name) if name in FRAMEWORKS else None
    if found is None:
        return
    framework = FRAMEWORKS[name]
    package = f"{framework.package} {found}"
    if framework.below and _numbers(found) >= _numbers(framework.below):
        known = f"{package} is newer than the versions whose private interfaces are known"
        raise MissingDependencyError(f"{known}; {framework.cure}")
    if not is_there(name):
        return  # it cannot even be imported, which whoever imports the adapter is told
    lacks = [each for each in framework.lacks if not each.without]
    if lacks:
        needs = "; ".join(f"{each.path.replace(':', '.')}, for {each.purpose}" for each in lacks)
        raise MissingDependencyError(f"{package} lacks {needs}; {framework.cure}")
    if framework.below and _numbers(found) > _numbers(framework.newest):
        warnings.warn(
            f"{package} is newer than {framework.newest}, the last version that tensorstash was tested on, and its "
            f"adapter depends on private interfaces; if gradients differ, install that version",
            TensorStashWarning,
            stacklevel=2,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
