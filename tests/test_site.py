"""The site is built without a warning, shows every public name with an example, and its notebook runs."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorstash as ts
from tests.documents import ROOT, Document
from tests.forked_workers import PROGRAMS

API = Document("docs/api.md")
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r":(?:func|class|meth|mod|attr|data):", page) == []  # no markup of docstrings is left
    assert "<blockquote" not in page  # which an example outside of a code block would be
    assert "../README.md" not in (tmp_path / "policies" / "index.html").read_text(encoding="utf-8")


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    shown = re.findall(r"^::: (?:tensorstash\.host|tensorstash)\.(\w+)$", API.text, re.MULTILINE)
    assert sorted(shown) == sorted(ts.__all__)


@pytest.mark.parametrize("name", ts.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    public = getattr(ts, name)
    parts = [public, *(member for key, member in vars(public).items() if not key.startswith("_"))]
    assert any(">>> " in (inspect.getdoc(part) or "") for part in parts), name


def test_every_page_is_reached_from_the_first_or_the_readme() -> None:
    linked = {link.partition("#")[0] for link in Document("docs/index.md").links}
    linked |= {Path(link.partition("#")[0]).name for link in Document("README.md").links}
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - linked == set()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_holds_no_output(notebook: Path, warm: Callable[..., str]) -> None:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    program = "\n\n".join("".join(cell["source"]) for cell in cells)
    command = [warm(*PROGRAMS["torch"]), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "bitwise equal: True" in done.stdout
    assert re.search(r"stashed +[1-9]", done.stdout)
