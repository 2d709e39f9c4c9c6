"""The documents say only what is so: their programs run, their paths and links lead somewhere, their commands exist."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import tensorstash.errors
from benchmarks.__main__ import NAMES, parser_of
from tests.documents import ARCHITECTURE, CONTRIBUTING, DOCUMENTS, RESULTS, ROOT, TRAINERS, Document
from tests.forked_workers import PROGRAMS as IMPORTED

PROGRAMS = [
    (document, number)
    for document in DOCUMENTS
    for number in range(len(document.blocks("python")))
    if document not in TRAINERS  # tests/integrations/test_pages.py runs these, which import half of the world, at once
]

RETIRED = ("what becomes of", "nobody", "likewise")
"""Turns of phrase that plain English does without."""

SUFFIXES = (".py", ".md", ".c", ".h")

THINGS = [
    "prefetch order",
    "version check",
    "O_DIRECT",
    "4-bit packing",
    "Paddle's nesting repair",
    "pinned memory",
    "the in-flight budget",
    "dedup key",
    "TOML reading",
    "the fault injector",
]
"""Where to find these is what the map tells."""


def named(document: Document) -> str:
    return document.name


def paths(text: str) -> list[str]:
    """Return what stands between backticks, outside of links, and looks like the path of a file or folder here."""
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"(?<!\[)`([\w./-]+)`", without_blocks)
    return [word for word in words if "/" in word or word.endswith(SUFFIXES)]


@pytest.mark.parametrize(("document", "number"), PROGRAMS, ids=lambda part: getattr(part, "name", part))
def test_every_program_runs_on_its_own(
    document: Document, number: int, tmp_path: Path, warm: Callable[..., str]
) -> None:
    for policy in document.blocks("toml"):
        if "[policy]" in policy:
            (tmp_path / "policy.toml").write_text(policy)
    program = document.blocks("python")[number]
    here = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    imported = re.search(r"^import (torch|paddle)$", program, re.MULTILINE)
    python = warm(*IMPORTED[imported[1]]) if imported else sys.executable
    done = subprocess.run([python, "-c", program], cwd=tmp_path, env=here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "stats()" not in program or re.search(r"(stashed|recomputed: .+) +[1-9]", done.stdout)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_leads_somewhere(document: Document) -> None:
    for link in document.links:
        target, _, anchor = link.partition("#")
        place = (document.folder / target).resolve() if target else ROOT / document.name
        assert place.exists(), link
        if anchor:
            assert anchor in Document(str(place.relative_to(ROOT))).anchors, link


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_path_exists(document: Document) -> None:
    assert [path for path in paths(document.text) if not (ROOT / path).exists()] == []


def test_paths_are_told_from_other_code() -> None:
    text = "`a/b` `run.py` `torch.nn` `pack` `x | y` `docs/` [`own.py`](examples/own.py)"
    assert paths(text) == ["a/b", "run.py", "docs/"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_name_of_the_package_exists(document: Document) -> None:
    for name in sorted(set(re.findall(r"`(tensorstash(?:\.\w+)+)(?:\(.*?\))?`", document.text))):
        module, _, attribute = name.rpartition(".")
        # What wraps a library that is not here exists all the same.
        holder = import_module(module)
        assert hasattr(holder, attribute) or (hasattr(holder, "__path__") and find_spec(name)), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_command_exists(document: Document) -> None:
    offered = subprocess.run([sys.executable, ROOT / "run.py"], capture_output=True, text=True).stderr
    shown = [*document.commands, *re.findall(r"`(python3? [^`]+)`", document.text)]
    for command in shown:
        program, *words = shlex.split(command)
        if words[:1] == ["run.py"]:
            assert f"python3 run.py {words[1]} " in offered, command
            if words[1] == "train":
                parser_of("main_job").parse_args(words[2:])
        elif words[:2] == ["-m", "benchmarks"] and words[2:]:
            assert words[2] in NAMES, command
            parser_of(words[2]).parse_args(words[3:])
        elif words[:2] == ["-m", "pytest"]:
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), command
        else:
            assert words[:2] == ["-m", "tensorstash"] or Path(program).name in KNOWN, command


KNOWN = {"pip", "python", "ruff", "mypy", "tensorstash", "torchrun", "accelerate"}
"""Programs that documents may show without more being known of their arguments."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_prose_is_plain(document: Document) -> None:
    prose = document.prose.lower()
    assert [phrase for phrase in RETIRED if phrase in prose] == []
    assert re.findall(r"(?:^|[.!?:] )What (?!is)[^?\n]*$", document.prose, re.MULTILINE) == []


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
    assert parents == {name: kind.__bases__[0].__name__ for name, kind in kinds if _is_raised(kind)}


def _is_raised(kind: type) -> bool:
    return issubclass(kind, Exception) and not issubclass(kind, Warning)


def test_every_example_is_in_the_table() -> None:
    rows = Document("docs/extending.md").rows("More examples")
    linked = {path for cells in rows for cell in cells for path in re.findall(r"\]\(\.\./(.*?)\)", cell)}
    assert linked == {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()}


def test_every_benchmark_is_in_the_results() -> None:
    shown = set(re.findall(r"`python -m benchmarks (\w+)[^`]*`", RESULTS.text))
    assert shown == set(NAMES) - {"main_job"}


def test_every_table_of_results_is_linked() -> None:
    linked = {Path(link).name for link in RESULTS.links}
    assert {path.name for path in (ROOT / "benchmarks" / "results").glob("*.md")} <= linked


def test_the_glossary_explains_each_word_once() -> None:
    words = [cells[0] for cells in ARCHITECTURE.rows("Glossary")]
    assert len(words) == len(set(words)) >= 20


def test_the_map_leads_to_ten_things() -> None:
    rows = CONTRIBUTING.rows("The map")
    assert [cells[0] for cells in rows] == THINGS
    assert all(paths(cells[1]) for cells in rows)
