"""The benchmark of the command line trains each policy in a process of its own and compares with none."""

import json

import pytest

from tensorstash.cli import main

SMALL = ["--steps", "2", "--depth", "1", "--batch", "2", "--length", "32", "--width", "64", "--heads", "2", "--json"]


def test_policies_are_compared_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--framework", "torch", "--policy", "compress:min_ratio=1", *SMALL]) == 0
    plain, compressed = json.loads(capsys.readouterr().out)
    assert (plain["policy"], compressed["policy"]) == ("none", "compress:min_ratio=1")
    assert plain["gradients"] == compressed["gradients"]
    assert plain["stats"] is None
    assert compressed["stats"]["stashed"]["tensors"] > 0


def test_a_mistake_in_a_policy_is_found_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--policy", "compres"]) == 1
    shown = capsys.readouterr()
    assert "did you mean 'compress'?" in shown.err
    assert shown.out == ""
