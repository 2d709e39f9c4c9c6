"""The README says only what is so: its programs run, its names exist, its commands are those that CI runs."""

import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

import tensorstash as ts
import tensorstash.errors

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROGRAMS = [text for language, text in BLOCKS if language == "python"]
TOML = [text for language, text in BLOCKS if language == "toml"]
COMMANDS = [line[2:] for language, text in BLOCKS if language == "console" for line in text.splitlines()]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table in a section, without its head."""
    section = README.partition(f"\n## {heading}\n")[2]
    lines = section[section.index("\n|") + 1 :].splitlines()
    table = takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table][2:]


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=lambda program: f"line {README[: README.index(program)].count(chr(10))}"
)
def test_every_program_runs_on_its_own(program: str, tmp_path: Path) -> None:
    (policy,) = TOML
    (tmp_path / "policy.toml").write_text(policy)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "stats()" not in program or re.search(r"stashed +[1-9]", done.stdout)


@pytest.mark.parametrize("line", [cells[1] for cells in rows("Policies")])
def test_every_line_of_the_policy_table_parses(line: str) -> None:
    text = re.fullmatch(r"`(.*)`", line.replace("\\|", "|"))
    if text is None:
        assert "file" in line
    else:
        assert isinstance(ts.parse(text[1]), ts.HookPolicy)


def test_the_policy_table_names_every_policy() -> None:
    cells = " ".join(cells[0] for cells in rows("Policies"))
    policies = {
        name
        for name in ts.__all__
        if isinstance(kind := getattr(ts, name), type) and hasattr(kind, "plan") and name != "HookPolicy"
    }
    assert {name for name in policies - {"Chain", "Policy"} if f"`{name}(" not in cells} == set()


def test_every_error_is_in_the_tree() -> None:
    tree = README.partition("\n## Errors\n")[2].partition("\n## ")[0]
    names = {name for name, kind in vars(tensorstash.errors).items() if isinstance(kind, type) and "Error" in name}
    assert {name for name in names if name not in tree} == set()


def test_every_example_is_in_the_table() -> None:
    linked = {path for cells in rows("Extending") for cell in cells for path in re.findall(r"\]\((.*?)\)", cell)}
    assert linked == {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()}


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.*)$", README, re.M)
    }
    assert set(re.findall(r"\]\(#(.*?)\)", README)) <= anchors


def test_continuous_integration_runs_the_test_command() -> None:
    assert "python3 run.py test" in COMMANDS
    assert 'python3 run.py test "$@"' in (ROOT / ".ci" / "run").read_text().splitlines()


def test_run_offers_the_commands_of_the_readme() -> None:
    refused = subprocess.run([sys.executable, ROOT / "run.py"], capture_output=True, text=True)
    assert refused.returncode == 1
    for command in COMMANDS:
        if command.startswith("python3 run.py "):
            assert f"python3 run.py {command.split()[2]} " in refused.stderr
