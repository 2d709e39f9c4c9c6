"""The benchmarks, in sizes that take seconds: those that measure a process in one of its own, the others here."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import budget_sweep
from benchmarks.__main__ import NAMES, main
from benchmarks.harness.report import Report, columns
from benchmarks.harness.turns import Job, WorkerError, run
from benchmarks.models.training import NONE
from benchmarks.policies import CHECKPOINT, LAUNCHED, Variant, ratios
from tests.samples import IS_LONG

ROOT = Path(__file__).resolve().parent.parent
LOSSY = "quantize:bits=8"

RunHere = Callable[..., str]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[RunHere]:
    """Run a benchmark as its command line would, but in this process, and return what it prints."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))  # what one sets

    def run(*arguments: str) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status = main(arguments)
        assert not status
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


def script(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run ``python`` with these arguments, in a process of its own, and in processes that it starts in turn."""
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stderr
    return done


def test_policies_and_budgets_are_compared_with_none(tmp_path: Path) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "points.png"
    arguments = ["--quick", "--workload", "paddle_gpt", "--rounds", "1", "--json", str(report), "--plot", str(picture)]
    chosen = [LOSSY, "disk_spill@64KiB"] if IS_LONG else [f"{LOSSY}@64KiB"]
    done = script("-m", "benchmarks", "policies", *arguments, *(f"--policy={policy}" for policy in chosen))

    ((_, measured),) = json.loads(report.read_text())["workloads"].items()
    assert list(measured) == ["none", LAUNCHED, CHECKPOINT, *chosen]
    for name, each in measured.items():
        assert each["activation_bytes"] > 0
        assert len(each["step_s"]) == (4 if "@" in name else 2)
        assert (each["stats"] is None) == (name not in chosen)
        assert (each["gradients_sha256"] == measured["none"]["gradients_sha256"]) == (LOSSY not in name)
    assert measured[chosen[0]]["stats"]["stashed"]["tensors"] > 0
    assert measured[chosen[-1]]["stats"]["planned"]["stored"]["tensors"] > 0
    assert 0 < measured[chosen[0]]["difference"] < 0.5
    peaks = [float(row["memory"]) for row in table(done.stdout)]
    assert (len(peaks), peaks) == (len(measured), sorted(peaks, reverse=True))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_first_steps_do_not_count_and_ratios_are_of_the_same_round() -> None:
    times = {Variant(NONE): [9.0, 1.0, 2.0, 4.0], Variant("keep"): [1.0, 1.5, 3.0, 6.0]}
    measured = {key: {"activation_bytes": 8, "step_s": some, "cpu_s": some} for key, some in times.items()}
    assert ratios(measured, Variant("keep")) == (1.0, 1.5, 1.5)


def test_budgets_are_parts_of_what_a_step_saves_and_other_gradients_are_an_error(monkeypatch: Any, capsys: Any) -> None:
    def measure(name: str, model: Any, variants: list[Variant], *_: Any, **__: Any) -> dict[Variant, dict[str, Any]]:
        return {each: figure(100, 1, each.untimed) | {"gradients_sha256": each} for each in variants}

    monkeypatch.setattr(budget_sweep, "run", lambda job: {"stats": {"stashed": {"nbytes": 1000}}})
    monkeypatch.setattr(budget_sweep, "measure", measure)
    assert main(["budget_sweep", "--workload=torch_gpt", "--part=0.5", "--fixed=keep", "--policy=disk_spill"])
    rows = table(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["none", "keep", "disk_spill"]
    assert [row["gradients"] for row in rows] == ["bitwise", "differ", "differ"]
    assert rows[-1]["part"] == "0.50"


def figure(nbytes: float, seconds: float, untimed: int = 1) -> dict[str, Any]:
    times = [9.0] * untimed + [seconds]
    return {"activation_bytes": nbytes, "step_s": times, "cpu_s": times, "stats": None, "gradients_sha256": ""}


def test_a_process_that_fails_is_an_error_which_ends_with_its_own() -> None:
    with pytest.raises(WorkerError, match=r"(?s)^a job: exit status 1.*unexpected keyword argument 'no_size'"):
        run(Job("a job", "benchmarks.models.training:train", {"no_size": 1}))


def test_a_budget_is_held_against_the_fastest_policy_that_fits() -> None:
    slow, fast, large, at = (Variant(name) for name in ("recompute", "keep", "disk_spill", "disk_spill@50B"))
    measured = {Variant(NONE): figure(150, 10), slow: figure(90, 14), fast: figure(102, 12)}
    measured |= {large: figure(103, 11), at: figure(99, 13.2, at.untimed)}
    *_, row = budget_sweep.rows("net", measured, {at: 0.5}, saved=100)
    named = dict(zip(budget_sweep.COLUMNS, row, strict=True))
    assert (named["of implied"], named["best that fits"]) == (0.99, "keep")
    assert named["of best"] == pytest.approx(1.1)


def test_a_policy_that_does_not_exist_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["policies", "--quick", "--policy", "qantize:bits=8"])
    assert end.value.code == 2
    assert "did you mean 'quantize'" in capsys.readouterr().err


def test_steps_on_a_device_are_measured_for_every_method(run_here: RunHere, tmp_path: Path) -> None:
    sizes = "--width=64 --depth=2 --heads=2 --vocabulary=64 --batch=4 --length=64 --rounds=1 --steps=1"
    files = ["--json", str(tmp_path / "rows"), "--markdown", str(tmp_path / "table")]
    run_here("torch_device", "--device", "cpu", *sizes.split(), *files)
    found = json.loads((tmp_path / "rows").read_text())["found"]["64"]
    assert [name for name, row in found.items() if "failure" in row] in ([], ["trl", "checkpoint, trl"])
    for name, row in found.items():
        if "failure" not in row:
            # Pinned copies of PyTorch are contiguous whatever was saved: some processors round otherwise on them.
            if name != "save_on_cpu pinned":
                assert (row["gradients"] == "equal") is not name.startswith("quantize"), (name, row["gradients"])
            assert len(row["seconds"]) == 1
    assert found["cpu_offload"]["stats"]["seen"]["nbytes"] > 0
    assert [row["length"] for row in table((tmp_path / "table").read_text())] == ["64"] * len(found)


@pytest.mark.long
def test_all_that_is_measured_on_an_accelerator_runs_on_the_simulated_one(tmp_path: Path) -> None:
    parts = ["link", "steps", "llama", "hooks"] if IS_LONG else ["link"]
    words = [word for part in parts for word in ("--part", part)]
    done = script("-m", "benchmarks", "gpu", "--device", "sim", "--small", "--directory", str(tmp_path), *words)
    assert [row["outcome"] for row in table(done.stdout)] == ["done"] * len(parts)
    assert [float(row["out GB/s"]) > 0 for row in table((tmp_path / "gpu_link.md").read_text())] == [True]


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of the Markdown table in a text, by the heads of their columns."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_training_quality_is_reported_as_numbers_and_a_table(run_here: RunHere, tmp_path: Path) -> None:
    some = f"--tiny --policy {LOSSY} --seeds 2 --steps 3 --task torch/gpt".split()
    files = ["--markdown", str(tmp_path / "quality.md"), "--json", str(tmp_path / "quality.json")]
    run_here("quality", *files, *some)

    rows = table((tmp_path / "quality.md").read_text())
    assert [row["policy"] for row in rows] == ["none", LOSSY]
    assert all(0.2 < float(row["bytes"]) < 0.5 for row in rows[1::2])
    assert all(0 < float(row["gradient error, median"]) < 0.1 for row in rows[1::2])
    outcomes = json.loads((tmp_path / "quality.json").read_text())["outcomes"]
    assert [len(found) for found in outcomes.values()] == [4]


def test_the_cost_of_a_saved_tensor_is_measured(run_here: RunHere) -> None:
    rows = table(run_here("hooks", "--framework", "torch", "--rounds", "2", "--saves", "10", "--kib", "16"))
    kept = {row["under"]: row for row in rows if row["saved"] == "small tensors"}
    stashed = {row["under"]: row for row in rows if row["saved"] == "large tensors"}
    assert {"a pair that does nothing", "keep"} <= set(kept)
    assert all(row["pack"] and not row["copy, pack"] for row in kept.values())
    assert {"host memory, at once", "quantize", "disk_spill"} <= set(stashed)
    copies = {(float(row["copy, pack"]), float(row["copy, unpack"])) for row in stashed.values()}
    assert len(copies) == 1
    assert "copies" not in stashed  # all are compared with them


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [name for name, _ in listed] == NAMES
    assert main(["no_such_benchmark"]) == 2


def test_a_report_says_what_was_run_where_and_when(tmp_path: Path) -> None:
    written = tmp_path / "report.md"
    report = Report("A title", "python -m benchmarks it", markdown=written)
    report.begin(columns("name | seconds:.2f"))
    report.row(["first", 0.125])
    text = written.read_text()
    assert "`python -m benchmarks it`" in text
    assert f"numpy {np.__version__}" in text
    assert re.search(r"\d cores, .*\d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert table(text) == [{"name": "first", "seconds": "0.12"}]
