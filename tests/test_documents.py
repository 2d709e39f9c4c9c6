"""The documents say only what is so: their links, paths, names and commands exist; the site shows every public name."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import tensorstash as ts
import tensorstash.errors
from benchmarks.__main__ import NAMES, parser_of
from tensorstash.testing import BackendSuite
from tests.documents import DOCUMENTS, ROOT, Document

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)

KNOWN = {"pip", "python", "ruff", "mypy", "tensorstash", "torchrun", "accelerate"}
"""Programs that documents may show without more being known of their arguments."""


@each_document
def test_every_link_leads_somewhere(document: Document) -> None:
    for link in document.links:
        target, _, anchor = link.partition("#")
        place = (document.folder / target).resolve() if target else ROOT / document.name
        assert place.exists(), link
        if anchor:
            assert anchor in Document(str(place.relative_to(ROOT))).anchors, link


@each_document
def test_every_path_exists(document: Document) -> None:
    assert [path for path in document.paths if not (ROOT / path).exists()] == []


@each_document
def test_every_name_of_the_package_exists(document: Document) -> None:
    for name in sorted(set(re.findall(r"`(tensorstash(?:\.\w+)+)(?:\(.*?\))?`", document.text))):
        module, _, attribute = name.rpartition(".")
        holder = import_module(module)
        # A module may wrap a library that is not here.
        assert hasattr(holder, attribute) or (hasattr(holder, "__path__") and find_spec(name)), name


def test_every_command_exists() -> None:
    offered = subprocess.run([sys.executable, ROOT / "run.py"], capture_output=True, text=True)
    assert offered.returncode == 1
    for command in [command for document in DOCUMENTS for command in document.commands]:
        program, *words = shlex.split(re.sub(r"^(\w+=\S+ )+", "", command))  # behind the variables that it sets
        if words[:1] == ["run.py"]:
            assert f"python3 run.py {words[1]} " in offered.stderr, command
            if words[1] == "train":
                parser_of("policies").parse_args(words[2:])
        elif words[:2] == ["-m", "benchmarks"] and words[2:]:
            assert words[2] in NAMES, command
            parser_of(words[2]).parse_args(words[3:])
        elif words[:2] == ["-m", "pytest"]:
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), command
        elif words[:1] == ["-m"] and words[1].startswith("tests."):
            assert find_spec(words[1]), command
        else:
            assert words[:2] == ["-m", "tensorstash"] or Path(program).name in KNOWN, command


def test_every_error_is_in_the_tree_under_its_parent() -> None:
    (tree,) = Document("docs/errors.md").blocks("")
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in tree.splitlines():
        found = re.match(r"^([^\w]*)(\w+)", line)
        assert found is not None, line
        del above[len(found[1]) // 4 :]
        parents[found[2]] = above[-1] if above else "Exception"
        above.append(found[2])
    kinds = inspect.getmembers(tensorstash.errors, inspect.isclass)
    raised = {name: kind for name, kind in kinds if issubclass(kind, Exception) and not issubclass(kind, Warning)}
    assert parents == {name: kind.__bases__[0].__name__ for name, kind in raised.items()}


def test_every_table_of_results_is_linked() -> None:
    linked = {Path(link).name for link in Document("docs/results.md").links}
    assert {path.name for path in (ROOT / "benchmarks" / "results").glob("*.md")} <= linked


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    assert {"python3 run.py train", "python3 run.py test"} <= set(Document("README.md").commands)
    assert 'python3 run.py test "$@"' in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_line_of_the_contract_has_a_group_of_checks_that_bears_its_number() -> None:
    row = re.compile(r"^\| <a id=\"line-(\d+)\"></a>\1 \|.*\[`(\w+)`\]\(\.\./(\S+)\) \|$", re.MULTILINE)
    lines = row.findall(Document("docs/CONTRACT.md").text)
    groups = {group.__name__: group for group in BackendSuite.__bases__}
    assert [int(number) for number, _, _ in lines] == list(range(1, len(lines) + 1))
    assert sorted(name for _, name, _ in lines) == sorted(groups)
    for number, name, file in lines:
        assert file == groups[name].__module__.replace(".", "/") + ".py"
        checks = [check for check in vars(groups[name]) if check.startswith("test_")]
        assert checks, name
        assert all(check.startswith(f"test_line{int(number):02}_") for check in checks), name


def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r":(?:func|class|meth|mod|attr|data):", page) == []  # no markup of docstrings is left
    assert "<blockquote" not in page  # which an example outside of a code block would be


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    shown = re.findall(r"^::: (?:tensorstash\.host|tensorstash)\.(\w+)$", Document("docs/api.md").text, re.MULTILINE)
    assert sorted(shown) == sorted(ts.__all__)


@pytest.mark.parametrize("name", ts.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    public = getattr(ts, name)
    parts = [public, *(member for key, member in vars(public).items() if not key.startswith("_"))]
    assert any(">>> " in (inspect.getdoc(part) or "") for part in parts), name


def test_every_page_is_in_the_navigation_and_reached_from_the_first() -> None:
    pages = {path.name for path in (ROOT / "docs").rglob("*.md")}
    listed = re.findall(r"^ +- .*: (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(pages)
    assert len(pages) <= 16
    linked = {Path(link.partition("#")[0]).name for link in Document("docs/index.md").links}
    assert pages - linked == {"index.md"}


@each_document
def test_no_document_recommends_what_the_results_refute(document: Document) -> None:
    assert not re.search(r"compress\S* *\\?\| *disk_spill", document.text)
