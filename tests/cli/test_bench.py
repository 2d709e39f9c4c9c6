"""The benchmark of the command line trains each policy in a process of its own and compares with none."""

import json
import sys
from collections.abc import Callable

import pytest

from benchmarks.main_job import advice
from tensorstash.cli import main
from tests.forked_workers import PROGRAMS

SMALL = ["--rounds", "1", "--depth", "1", "--batch", "2", "--length", "32", "--width", "64", "--heads", "2", "--json"]


def test_policies_are_compared_with_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, warm: Callable[..., str]
) -> None:
    monkeypatch.setattr(sys, "executable", warm(*PROGRAMS["torch"], **advice()))
    assert main(["bench", "--framework", "torch", "--policy", "compress:min_ratio=1", *SMALL]) == 0
    plain, checkpointed, compressed = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in (plain, checkpointed, compressed)] == [
        "none",
        "checkpoint per block",
        "compress:min_ratio=1",
    ]
    assert plain["gradients_sha256"] == compressed["gradients_sha256"] == checkpointed["gradients_sha256"]
    assert plain["stats"] is None
    assert compressed["stats"]["stashed"]["tensors"] > 0


def test_a_mistake_in_a_policy_is_found_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--policy", "compres"]) == 1
    shown = capsys.readouterr()
    assert "did you mean 'compress'?" in shown.err
    assert shown.out == ""
