"""The comparison run and the benchmarks of whole trainings, in sizes that take seconds."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runner import WorkerError, measure
from benchmarks.variants import Variant

ROOT = Path(__file__).resolve().parent.parent

LOSSLESS = "compress | disk_spill"
LOSSY = "quantize:bits=8"


def compare(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_the_comparison_trains_under_each_policy(framework: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = compare("--framework", framework, "--policy", LOSSLESS, "--policy", LOSSY, "--json", str(report))
    assert done.returncode == 0, done.stderr

    measurements = json.loads(report.read_text())["measurements"]
    by_policy = {m["variant"]["policy"]: m for m in measurements}
    assert list(by_policy) == ["none", LOSSLESS, LOSSY]
    baseline = by_policy["none"]
    assert by_policy[LOSSLESS]["gradients_sha256"] == baseline["gradients_sha256"]
    assert by_policy[LOSSLESS]["final_loss"] == baseline["final_loss"]
    assert 0 < by_policy[LOSSY]["gradient_difference"] < 0.5
    assert all(by_policy[policy]["details"]["stats"]["stashed"]["tensors"] > 0 for policy in (LOSSLESS, LOSSY))
    assert all(m["activation_bytes"] > 0 and m["step_seconds"] > 0 for m in measurements)

    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {framework}")]
    assert len(rows) == len(measurements)
    assert "bitwise equal" in next(row for row in rows if "compress" in row)
    assert "differ by" in next(row for row in rows if "quantize" in row)
    assert f"{3 * len(measurements)}/{3 * len(measurements)}" in done.stderr


def test_a_policy_that_does_not_exist_is_refused_before_anything_runs() -> None:
    done = compare("--policy", "qantize:bits=8")
    assert done.returncode == 2
    assert "did you mean 'quantize'" in done.stderr


def test_a_training_that_fails_is_reported_with_its_own_words(tmp_path: Path) -> None:
    variant = Variant("torch", f"disk_spill:directory={tmp_path / 'missing'}")
    gradients = tmp_path / "gradients.npz"
    with pytest.raises(WorkerError, match=r"^torch, disk_spill.*: exit status 1\n") as failure:
        measure(variant, steps=2, quick=True, gradients=gradients, reference=gradients, on_step=str)
    assert str(tmp_path / "missing") in str(failure.value).splitlines()[-1]


def test_steps_on_a_device_are_measured_for_every_method(tmp_path: Path) -> None:
    sizes = "--width=64 --depth=5 --heads=2 --vocabulary=128 --batch=4 --length=80 --rounds=1 --steps=1"
    files = ["--directory", str(tmp_path), "--json", str(tmp_path / "rows"), "--markdown", str(tmp_path / "table")]
    script(["gpu_step.py", "--device", "cpu", *sizes.split(), *files])
    rows = {row["method"]: row for row in json.loads((tmp_path / "rows").read_text())["rows"]}
    assert [name for name, row in rows.items() if "failure" in row] in ([], ["trl", "checkpoint, trl"])
    for name, row in rows.items():
        if "failure" not in row:
            assert row["gradients"]["equal"] is not name.startswith("quantize")
            assert len(row["seconds"]) == 1
    assert rows["some: cpu_offload"]["stats"]["seen"]["nbytes"] < rows["cpu_offload"]["stats"]["seen"]["nbytes"] / 2
    assert (tmp_path / "table").read_text().count("\n| 80 |") == len(rows)


def test_kernels_of_devices_are_measured(tmp_path: Path) -> None:
    script(
        ["gpu_kernels.py", "--device", "cpu", "--elements", "20480", "--rounds", "1", "--json", str(tmp_path / "rows")]
    )
    rows = json.loads((tmp_path / "rows").read_text())["rows"]
    assert {row["codec"].partition("(")[0] for row in rows} == {"Affine", "AsType", "PackBits", "TwoValued"}
    assert all(row["encode"] > 0 and row["decode"] > 0 and row["payload"] < 0.6 for row in rows)


def script(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "bench" / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("workload", ["torch:resnet", "paddle:gpt"])
def test_every_codec_is_measured_on_what_a_model_saves(workload: str, tmp_path: Path) -> None:
    report = tmp_path / "table.json"
    small = ("--steps", "1", "--scale", "1", "--rounds", "1", "--most", "1")
    script(["codec_table.py", "--workload", workload, *small, "--json", str(report)])
    found = json.loads(report.read_text())
    assert {row["dtype"] for row in found["rows"]} >= {"float32", "bfloat16"}
    assert all(row["ratio"] > 0.99 and row["encode"] > 0 and row["decode"] > 0 for row in found["rows"])
    assert {row["codec"].partition("(")[0] for row in found["rows"]} >= {"Lossless", "Affine", "AsType", "Sparse"}
    assert all(mix["limit"] > 1 for mix in found["mixes"])


def test_random_tensors_survive_every_codec() -> None:
    done = script(["fuzz_codecs.py", "--count", "300", "--seed", "1"])
    assert "300 tensors, 0 faults" in done.stdout


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of the Markdown table in a text, by the heads of their columns."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(heads, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("name", "arguments", "exact"),
    [
        ("whole_step.py", ("--workload", "gpt_dropout", "--threads", "1"), {"disk_spill": "bitwise"}),
        ("whole_step.py", ("--workload", "paddle_gpt"), {"disk_spill": "bitwise"}),
        (
            "policy_table.py",
            ("--workload", "resnet", "--dtype", "bfloat16", "--method", "compress", "--method", "quantize:bits=2"),
            {"compress": "bitwise", "quantize:bits=2": "differ"},
        ),
    ],
    ids=["torch", "paddle", "policies"],
)
def test_whole_steps_are_compared(name: str, arguments: tuple[str, ...], exact: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = script([name, "--tiny", *arguments, "--rounds", "1", "--json", str(report)])

    rows = table(done.stdout)
    assert [row["method"] for row in rows] == ["none", "none", "recompute", *exact]
    assert [row["gradients"] for row in rows] == ["", "", "", *exact.values()]
    assert all(float(row["step s"]) > 0 for row in rows)
    assert rows[0]["step of default"] == rows[1]["of same"] == "1.000"
    for measured in json.loads(report.read_text())["measured"]:
        (run,) = measured["runs"]
        assert (run["stashed_bytes"] > 0) == (measured["variant"]["method"] in exact)


def test_training_quality_is_reported_as_numbers_a_table_and_a_plot(tmp_path: Path) -> None:
    script(["training_quality.py", str(tmp_path), "--tiny", "--policy", LOSSY, "--seeds", "2", "--steps", "3"])

    rows = table((tmp_path / "training_quality.md").read_text())
    assert [row["policy"] for row in rows] == ["none", LOSSY] * 4
    assert all(0.2 < float(row["bytes"]) < 0.5 for row in rows[1::2])
    assert all(0 < float(row["gradient error, median"]) < 0.1 for row in rows[1::2])
    assert (tmp_path / "training_quality.png").read_bytes().startswith(b"\x89PNG")
    findings = json.loads((tmp_path / "training_quality.json").read_text())["findings"]
    assert {len(found["outcomes"]) for found in findings} == {4}
