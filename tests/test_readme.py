"""The README shows what is there: policies, guarantees, measurements, and the commands that CI runs."""

import re
import subprocess
import sys

import pytest

import tensorstash as ts
from tests.documents import CONTRACT, README, ROOT, Document

LINES = re.compile(r"^\| <a id=\"(.*?)\"></a>(\d+) \| \*\*(.*?)\*\*", re.MULTILINE)
ITEMS = re.compile(r"^(\d+)\. \[\*\*(.*?)\*\*\]\((.*?)\)", re.MULTILINE)


def test_it_is_short() -> None:
    assert len(README.text.splitlines()) <= 180


@pytest.mark.parametrize("line", [cells[1] for cells in README.rows("Policies")])
def test_every_line_of_the_policy_table_parses(line: str) -> None:
    text = re.fullmatch(r"`(.*)`", line.replace("\\|", "|"))
    if text is None:
        assert "file" in line
    else:
        assert isinstance(ts.parse(text[1]), ts.HookPolicy)


def test_the_policy_table_names_every_policy() -> None:
    cells = " ".join(cells[0] for cells in README.rows("Policies"))
    policies = {
        name
        for name in ts.__all__
        if isinstance(kind := getattr(ts, name), type) and hasattr(kind, "alternatives") and name != "HookPolicy"
    }
    assert {name for name in policies - {"Chain", "Policy"} if f"`{name}(" not in cells} == set()


def test_the_guarantees_are_the_lines_of_the_contract() -> None:
    lines = [(number, title, f"{CONTRACT.name}#{anchor}") for anchor, number, title in LINES.findall(CONTRACT.text)]
    assert len(lines) > 10
    assert ITEMS.findall(README.section("Guarantees")) == lines


def test_its_figures_are_what_the_main_job_has_printed() -> None:
    printed = Document("benchmarks/results/main_job.md")
    assert README.rows() == printed.rows()
    assert len(README.rows()) > 10
    measured_on = next(line for line in printed.text.splitlines() if line.startswith("torch "))
    assert f"{measured_on.partition(', load')[0]}" in " ".join(README.text.split())
    assert printed.text.split("\n\n")[-1].startswith("On the frontier")


def test_continuous_integration_runs_the_test_command() -> None:
    assert {"python3 run.py train", "python3 run.py test"} <= set(README.commands)
    assert 'python3 run.py test "$@"' in (ROOT / ".ci" / "run").read_text().splitlines()


def test_without_a_command_run_lists_those_of_the_readme() -> None:
    refused = subprocess.run([sys.executable, ROOT / "run.py"], capture_output=True, text=True)
    assert refused.returncode == 1
    for command in README.commands:
        if command.startswith("python3 run.py "):
            assert f"{command} " in refused.stderr
