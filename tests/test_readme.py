"""The README shows what is there: policies, guarantees, measurements, and the commands that CI runs."""

import re
import subprocess
import sys

import pytest

import tensorstash as ts
from tests.documents import CONTRACT, README, ROOT, Document

LINES = re.compile(r"^\| <a id=\"(.*?)\"></a>(\d+) \| \*\*(.*?)\*\*", re.MULTILINE)
ITEMS = re.compile(r"^(\d+)\. \[\*\*(.*?)\*\*\]\((.*?)\)", re.MULTILINE)

WORKLOADS = ("gpt", "resnet", "paddle_gpt")
"""The models of the README's table of figures, column by column, as the benchmark calls them."""


STEP, MEMORY, GRADIENTS = 8, 12, 15
"""Columns of the benchmark's table; step and memory relative to no policy under the same allocator."""


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


def test_its_figures_are_those_of_the_result_tables() -> None:
    rows = [cells for cells in Document("benchmarks/results/policies.md").rows() if cells[1] == "float32"]
    measured = {(cells[0], cells[4]): cells for cells in rows if cells[3] == "advised"}
    shown = README.rows()
    assert len(shown) > 3
    for cells in shown:
        method = "checkpoint" if cells[0].startswith("*checkpoint") else cells[0].strip("`")
        for workload, figures in zip(WORKLOADS, cells[1:], strict=False):
            row = measured[workload, method]
            assert figures == f"{float(row[MEMORY]):.2f} · {float(row[STEP]):.2f}", (workload, method)
        gradients = {"bitwise": "bitwise equal", "differ": "close", "": ""}
        assert cells[4] == gradients[measured["gpt", method][GRADIENTS]]
    idle = [f"{float(measured[workload, 'keep'][STEP]):.2f}" for workload in WORKLOADS]
    assert f"shows {min(idle)} to {max(idle)}" in README.text


def test_continuous_integration_runs_the_test_command() -> None:
    assert {"python3 run.py train", "python3 run.py test"} <= set(README.commands)
    assert 'python3 run.py test "$@"' in (ROOT / ".ci" / "run").read_text().splitlines()


def test_without_a_command_run_lists_those_of_the_readme() -> None:
    refused = subprocess.run([sys.executable, ROOT / "run.py"], capture_output=True, text=True)
    assert refused.returncode == 1
    for command in README.commands:
        if command.startswith("python3 run.py "):
            assert f"{command} " in refused.stderr
