"""Every program of a document, example and notebook runs and says what it should; those of one framework in turn."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, ROOT, Document

EXAMPLES = ROOT / "examples"

EXPECTED = {
    "cpu_disk_spill": [r"none: peak \d+ MiB\ndisk_spill: peak \d+ MiB", "gradients bitwise equal: True"],
    "lora_finetune": [r"stashed +[1-9]", r"\(disk [1-9]"],
    "paddle_vision": [r"on disk at the peak: [1-9]\d* MiB; now: 0 bytes", "gradients bitwise equal: True"],
    "policy_from_file": [r"payloads: [1-9]\d* in disk, [1-9]\d* in memory"],
    "own_codec": [r"ratio: 1\.\d\d", "gradients bitwise equal: True"],
    "own_store": [r"payloads in the database: [1-9]", "gradients bitwise equal: True"],
    "own_backend": [
        r"in memory +[1-9]",
        r"x \*\* 4 has the gradient 4 x \*\* 3: True",
        "refused: one of the variables needed for gradient computation has been modified by an inplace operation",
    ],
}
"""Patterns in the output of each example."""

PARTS = {"tiny_autograd"}  # files that an example imports
RUNNER = """
import os, runpy, sys
paths, sys.argv[1:] = sys.argv[1:], []
for path in paths:
    os.chdir(os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")
    print("end of", path, flush=True)
"""


def programs() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the name of a program, its text, the settings file that it reads, and patterns of its output."""
    for document in DOCUMENTS:
        settings = next((block for block in document.blocks("toml") if "[policy]" in block), "")
        for number, text in enumerate(document.blocks("python")):
            expected = [r"(stashed|recomputed: .+) +[1-9]|'checkpointed': \('"] if "stats()" in text else []
            yield f"{document.name}:{number}", text, settings, expected
    settings = (EXAMPLES / "policy.toml").read_text(encoding="utf-8")
    for path in sorted(EXAMPLES.glob("*.py")):
        if path.stem not in PARTS:
            yield path.stem, path.read_text(encoding="utf-8"), settings, EXPECTED[path.stem]
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text = "\n\n".join("".join(cell["source"]) for cell in cells(path))
        yield path.stem, text, "", ["bitwise equal: True", r"stashed +[1-9]"]


def cells(notebook: Path) -> list[dict[str, object]]:
    """Return the cells of a notebook that hold code."""
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def groups() -> dict[str, list[tuple[str, str, str, list[str]]]]:
    """Return the programs that one process runs: those of a framework, or those that import none."""
    found: dict[str, list[tuple[str, str, str, list[str]]]] = {}
    for program in programs():
        framework = re.search(r"^ *(?:import|from) (torch|transformers|paddle)\b", program[1], re.MULTILINE)
        named = framework[1].replace("transformers", "torch") if framework else "no framework"
        found.setdefault(named, []).append(program)
    return found


GROUPS = groups()


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_programs_do_what_they_say(group: str, tmp_path: Path) -> None:
    paths = []
    for number, (_, text, settings, _) in enumerate(GROUPS[group]):
        paths.append(tmp_path / str(number) / "program.py")
        paths[-1].parent.mkdir()
        paths[-1].write_text(text, encoding="utf-8")
        (paths[-1].parent / "policy.toml").write_text(settings, encoding="utf-8")
    places = os.pathsep.join((str(ROOT), str(EXAMPLES)))
    command = [sys.executable, "-c", RUNNER, *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": places}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880)
    rest = done.stdout
    for (name, *_, expected), path in zip(GROUPS[group], paths, strict=True):
        said, ended, rest = rest.partition(f"end of {path}\n")
        assert ended, f"{name}: {done.stderr}"
        for pattern in expected:
            assert re.search(pattern, said), f"{name}: {pattern!r} is not in:\n{said}"


def test_there_is_a_program_for_each_trainer() -> None:
    _, *sections = Document("docs/trainers.md").text.split("\n## ")
    titles = [section.partition("\n")[0] for section in sections if "```python" in section]
    firsts = ["Transformers", "Lightning", "Accelerate", "torch.compile", "paddle.Model"]
    assert [title.partition(",")[0] for title in titles] == firsts


def test_no_notebook_holds_output() -> None:
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(path)), path
