"""The comparison run, in sizes that take seconds."""

import json
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


def script(arguments: list[str]) -> None:
    command = [sys.executable, str(ROOT / "tests" / "bench" / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def run_bench(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "bench" / name), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("workload", ["torch:resnet", "paddle:gpt"])
def test_every_codec_is_measured_on_what_a_model_saves(workload: str, tmp_path: Path) -> None:
    report = tmp_path / "table.json"
    small = ("--steps", "1", "--scale", "1", "--rounds", "1", "--most", "1")
    done = run_bench("codec_table.py", "--workload", workload, *small, "--json", str(report))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert {row["dtype"] for row in found["rows"]} >= {"float32", "bfloat16"}
    assert all(row["ratio"] > 0.99 and row["encode"] > 0 and row["decode"] > 0 for row in found["rows"])
    assert {row["codec"].partition("(")[0] for row in found["rows"]} >= {"Lossless", "Affine", "AsType", "Sparse"}
    assert all(mix["limit"] > 1 for mix in found["mixes"])


def test_random_tensors_survive_every_codec() -> None:
    done = run_bench("fuzz_codecs.py", "--count", "300", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 tensors, 0 faults" in done.stdout
