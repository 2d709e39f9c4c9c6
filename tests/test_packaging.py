"""What is published says what it is and holds what it needs; ``python -m tests.packages`` builds and installs it."""

import re
import tomllib

import tensorstash
from tests.documents import ROOT
from tests.processes import output_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WITHOUT = """
import sys
sys.modules["pytest"] = None  # as if it were not installed
try:
    import tensorstash.testing
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_kit_says_what_it_needs() -> None:
    expected = "MissingDependencyError tensorstash.testing needs pytest, which is not installed; pip install"
    assert output_of(WITHOUT).startswith(expected)


def test_the_extra_of_the_kit_has_what_the_kit_needs() -> None:
    assert [re.split("[>=]", each)[0] for each in PROJECT["optional-dependencies"]["testing"]] == ["pytest"]


def test_the_package_has_one_version() -> None:
    assert PROJECT["version"] == tensorstash.__version__


def test_every_version_of_python_that_is_supported_is_declared_and_built() -> None:
    declared = {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text}
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    built = {f"3.{text[3:].removesuffix('-*')}" for text in tool["build"].split()}
    assert declared == built == {"3.11", "3.12", "3.13", "3.14"}
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_declared_versions_of_frameworks_are_those_that_work() -> None:
    from tensorstash.backends.features import FRAMEWORKS

    for name, framework in FRAMEWORKS.items():
        (declared,) = PROJECT["optional-dependencies"][name]
        assert declared == framework.requirement


def test_what_is_needed_to_test_is_in_the_sdist() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()
    tops = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists() or path.suffix in (".md", ".py")}
    assert tops - {"tensorstash", "README.md"} <= {word.rstrip("/") for word in manifest} | {"tests"}
