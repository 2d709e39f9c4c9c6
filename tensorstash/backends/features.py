"""Undocumented features of frameworks that the adapters need, and the versions that have them.

``features.txt`` has their names: neither asking for them nor listing them imports a framework that is not there.
"""

import re
import warnings
from collections.abc import Mapping
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

    def is_there(self) -> bool:
        """Whether the framework has it; imports the framework."""
        try:
            resolve_name(self.path)
        except (ImportError, AttributeError):
            return False
        return True


class Framework(NamedTuple):
    """A framework as its package index knows it.

    Args:
        package: name for pip.
        oldest: version that has every feature.
        newest: version that all tests of the adapter were run on last.
        features: that it has to have.
        below: the first version that is refused; empty if none is.
    """

    package: str
    oldest: str
    newest: str
    features: tuple[Feature, ...]
    below: str = ""

    @property
    def versions(self) -> str:
        """The versions that work, for people."""
        end = f" to below {self.below}" if self.below else " and newer"
        return f"{self.package} {self.oldest}{end} (last tested: {self.newest})"

    @property
    def requirement(self) -> str:
        """The same for pip."""
        return f"{self.package}>={self.oldest}" + (f",<{self.below}" if self.below else "")


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
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


@cache
def require(name: str) -> None:
    """Check that the installed framework has the features that its adapter needs; imports it.

    A version that is newer than the last tested one, and not refused, is warned of where the versions have an end.

    Args:
        name: of a backend; one that is not in :data:`FRAMEWORKS` needs nothing.

    Raises:
        MissingDependencyError: it is there, and lacks something or is too new; the message has the versions that work.
    """
    found = installed(name) if name in FRAMEWORKS else None
    if found is None:
        return
    framework = FRAMEWORKS[name]
    cure = f"Versions that work: {framework.versions}; pip install '{framework.requirement}'"
    if framework.below and _numbers(found) >= _numbers(framework.below):
        raise MissingDependencyError(
            f"{framework.package} {found} is newer than the versions whose private interfaces are known. {cure}"
        )
    if not Feature(name, "").is_there():
        return  # it cannot even be imported, which whoever imports the adapter is told
    lacks = [each for each in framework.features if not each.without and not each.is_there()]
    if lacks:
        needs = "; ".join(f"{each.path.replace(':', '.')}, for {each.purpose}" for each in lacks)
        raise MissingDependencyError(f"{framework.package} {found} lacks {needs}. {cure}")
    if framework.below and _numbers(found) > _numbers(framework.newest):
        warnings.warn(
            f"{framework.package} {found} is newer than {framework.newest}, the last version that tensorstash was "
            f"tested on, and its adapter depends on private interfaces; if gradients differ, install that version",
            TensorStashWarning,
            stacklevel=2,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
