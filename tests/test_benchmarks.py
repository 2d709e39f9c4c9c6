"""The benchmarks, in sizes that take seconds.

What measures a process runs in processes of its own, most of them forked where the framework is imported already;
others run here, where it is, too.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from benchmarks import quality, steps
from benchmarks.__main__ import NAMES, main
from benchmarks.budget_sweep import KEEP, RIVALS, Sweep, budget, rows
from benchmarks.harness.bare_disk import CALL, BareDisk
from benchmarks.harness.torch_accelerator import beside
from benchmarks.main_job import RESNET, advice, measure
from benchmarks.models import build
from benchmarks.models.data import Batches
from benchmarks.steps import CHECKPOINT, NONE
from tensorstash.cli.bench_worker import scope_of
from tensorstash.cli.comparison import HALF, Training, Variant
from tensorstash.cli.turns import WorkerError
from tensorstash.host.allocator import advised_environment
from tensorstash.stores.disk.syscalls import Syscalls
from tests import fuzz_codecs
from tests.device.simulated import compiler

ROOT = Path(__file__).resolve().parent.parent

LOSSLESS = "compress | disk_spill"
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


IMPORTED = {
    "torch": ("torch", "torch._dynamo", "tensorstash.backends.torch", "benchmarks.models.training"),
    "paddle": ("paddle", "tensorstash.backends.paddle", "benchmarks.models.training"),
}
"""What processes that train import; optimizers of PyTorch import its compiler."""


def script(
    *arguments: str, python: str = sys.executable, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run ``python`` with these arguments, in a process of its own, and in processes that it starts in turn."""
    command = [python, "-W", "ignore", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(("framework", "policies"), [("torch", [LOSSLESS]), ("paddle", [HALF, LOSSY])])
def test_the_comparison_trains_under_each_policy(
    framework: str, policies: list[str], tmp_path: Path, warm: Callable[..., str]
) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "bars.png"
    arguments = ["--quick", "--framework", framework, "--rounds", "1", "--json", str(report), "--plot", str(picture)]
    # Where our environment is the advised one, nothing is run in another.
    environment = advised_environment(os.environ) if framework == "torch" else dict(os.environ)
    others = 1 if framework == "paddle" and advice() else 0
    lines = [f"--policy={policy.format(half='100KiB')}" for policy in policies]
    python = warm(*IMPORTED[framework], **(advice() if framework == "torch" else {}))
    done = script("-m", "benchmarks", "main_job", *arguments, *lines, python=python, environment=environment)

    ((_, (baseline, *rest)),) = json.loads(report.read_text())["trainings"].items()
    assert [m["stats"] is None for m in (baseline, *rest)] == [True, *[True] * others, True, *[False] * len(policies)]
    for measured in (baseline, *rest):
        assert measured["activation_bytes"] > 0
        assert measured["time_ratio"] > 0
        assert len(measured["step_s"]) == (17 if "budget" in measured["variant"] else 2)
        if measured["variant"] == LOSSY:
            assert 0 < measured["gradient_difference"] < 0.5
        else:
            assert measured["gradients_sha256"] == baseline["gradients_sha256"]
    assert all(m["stats"]["stashed"]["tensors"] > 0 for m in rest[others + 1 :])

    assert [row["policy"].replace("\\", "") for row in table(done.stdout)] == [m["variant"] for m in (baseline, *rest)]
    assert done.stdout.count("differ by") == policies.count(LOSSY)
    assert re.search("On the frontier of memory against time .*: ", done.stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")


def measured(*points: tuple[float, float]) -> Training:
    """Return a training of made-up memory and time: first that without a policy."""
    found = {Variant(f"policy {n}" if n else "none"): point for n, point in enumerate(points)}
    figures = {key: figure(memory * 100, [9, time, time]) for key, (memory, time) in found.items()}
    return Training("net, framework", figures)


def figure(nbytes: float, seconds: list[float]) -> dict[str, Any]:
    """Return what a process reports."""
    return {"activation_bytes": nbytes, "step_s": seconds, "cpu_s": seconds}


def test_the_frontier_has_what_nothing_beats_in_memory_and_time() -> None:
    training = measured((1, 1), (0.5, 1.1), (0.5, 1.2), (0.6, 1.15), (0.2, 1.3), (1.0, 0.9), (0.1, 2.0))
    assert [str(variant) for variant in training.frontier()] == ["none", "policy 1", "policy 4", "policy 6"]
    assert training.ratios(training.frontier()[1]) == (0.5, 1.1, 1.1)


def test_first_steps_do_not_count_and_ratios_are_of_the_same_round() -> None:
    none, policy = Variant(), Variant("keep")
    times = {none: [9.0, 1.0, 2.0, 4.0], policy: [1.0, 1.5, 3.0, 6.0]}
    training = Training("", {key: figure(1, seconds) for key, seconds in times.items()})
    assert training.ratios(policy)[1] == 1.5


def test_budgets_are_held_against_what_else_fits(tmp_path: Path, warm: Callable[..., str]) -> None:
    report = tmp_path / "report.json"
    sizes = ("--workload=torch_gpt", "--tiny", "--rounds=1", "--part=0.5")
    python, environment = warm(*IMPORTED["torch"], **advice()), os.environ | advice()
    arguments = ("budget_sweep", *sizes, "--json", str(report))
    done = script("-m", "benchmarks", *arguments, python=python, environment=environment)
    *others, budget = table(done.stdout)
    assert [row["policy"] for row in others] == ["none", *(str(rival).replace("|", "\\|") for rival in RIVALS)]
    assert budget["policy"] == "budget 0.5"
    assert {row["gradients"] for row in (*others, budget)} == {"bitwise"}
    assert 0 < float(budget["held"]) < 1.05
    assert float(budget["step"]) > 0


def sweep(times: dict[float, float], held: dict[float, float]) -> list[tuple[Any, ...]]:
    """Return the rows of budgets of 100 bytes in 150, made up: duration of steps, and what was held."""
    found = {Variant(): figure(150, [9, 10]), KEEP: figure(151, [9, 10.5])}
    found |= {rival: figure(100, [9, 12]) for rival in RIVALS[1:]}
    for part, seconds in times.items():
        measured = figure(50 + held[part], [9] * budget(100, part).untimed + [seconds])
        found[budget(100, part)] = {**measured, "stats": {"peak_held": held[part]}}
    digests = {key: {"gradients_sha256": "", **value} for key, value in found.items()}
    swept = Sweep(100, digests, [(0, 1010), (100, 1150), (0, 1010)])
    return list(rows("net", swept, sorted(times)))[1 + len(RIVALS) :]


def test_a_budget_meets_its_bars_or_says_which_it_misses() -> None:
    good = sweep({0.2: 14.0, 0.6: 12.2, 1.0: 10.5}, {0.2: 20, 0.6: 60, 1.0: 100})
    assert [row[-1] for row in good] == ["met"] * 3
    assert [row[7] for row in good] == ["nothing else fits", "1.017 of recompute", "1.000 of keep"]
    bad = sweep({0.6: 10.0, 0.8: 13.0, 1.0: 10.7}, {0.6: 66, 0.8: 50, 1.0: 100})
    assert [row[-1].partition(": ")[2] for row in bad] == [
        "held > 1.02, resident > 1.05, order of steps",
        "step > 1.03, order of peaks",
        "step > 1.01",
    ]


def test_a_budget_implies_what_the_neediest_moment_of_a_step_takes() -> None:
    moments = [(0, 1010), (100, 1110), (80, 1105), (20, 1050)]
    swept = Sweep(100, {Variant(): {"activation_bytes": 150}}, moments)
    assert [swept.implied(nbytes) for nbytes in (100, 90, 50, 20, 10)] == [150, 145, 115, 90, 80]
    assert [swept.implied_by_turn(nbytes) for nbytes in (100, 50, 10)] == [150, 100, 60]


def test_a_policy_that_does_not_exist_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["main_job", "--quick", "--policy", "qantize:bits=8"])
    assert end.value.code == 2
    assert "did you mean 'quantize'" in capsys.readouterr().err


def test_a_training_that_fails_is_reported_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Callable[..., str]
) -> None:
    monkeypatch.setattr(sys, "executable", warm(*IMPORTED["paddle"]))
    variant = Variant(f"disk_spill:directory={tmp_path / 'missing'}")
    with pytest.raises(WorkerError, match=r"^paddle, disk_spill.*: exit status 1\n") as failure:
        measure("paddle", [Variant(), variant], rounds=1, quick=True)
    assert str(tmp_path / "missing") in str(failure.value).splitlines()[1:][-1]


def test_digits_are_those_of_scikit_learn() -> None:
    theirs = load_digits()
    images, labels = Batches(replace(RESNET, batch=len(theirs.images), scale=2))(seed=0)
    chosen = np.random.default_rng(0).integers(0, len(theirs.images), len(theirs.images))
    assert np.array_equal(labels, theirs.target[chosen])
    enlarged = theirs.images[chosen].repeat(2, axis=1).repeat(2, axis=2)
    assert np.allclose(images[:, 0], (enlarged - theirs.images.mean()) / theirs.images.std(), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_steps_on_a_device_are_measured_for_every_method(
    device: str, run_here: RunHere, tmp_path: Path, warm: Callable[..., str]
) -> None:
    if device == "sim" and compiler() is None:
        pytest.skip("no C++ compiler")
    sizes = "--width=64 --depth=3 --heads=2 --vocabulary=64 --batch=4 --length=64 --rounds=1 --steps=1"
    files = ["--directory", str(tmp_path), "--json", str(tmp_path / "rows"), "--markdown", str(tmp_path / "table")]
    command = ("torch_device", "--device", device, "--gigabytes", "1", *sizes.split(), *files)
    if device == "cpu":
        run_here(*command)
    else:  # in a process of its own: a process has one accelerator
        methods = ("save_on_cpu pinned", "cpu_offload", "quantize:bits=4 | cpu_offload", "some: cpu_offload")
        options = (f"--method={name}" for name in methods)
        script("-m", "benchmarks", *command, *options, python=warm(*IMPORTED["torch"]))
    found = json.loads((tmp_path / "rows").read_text())["found"]["64"]
    assert [name for name, row in found.items() if "failure" in row] in ([], ["trl", "checkpoint, trl"])
    for name, row in found.items():
        if "failure" not in row:
            assert (row["gradients"] == "equal") is not name.startswith("quantize"), (name, row["gradients"])
            assert len(row["seconds"]) == 1
    if device == "sim":
        offloaded, pinned = found["cpu_offload"], found["save_on_cpu pinned"]
        assert all(max(row["peaks"]) > 0 for row in found.values())
        assert offloaded["copies"]["DtoH"]["nbytes"] < pinned["copies"]["DtoH"]["nbytes"]
        assert 0 < offloaded["pinned_nbytes"] < 1.5 * offloaded["stats"]["peak_bytes"]
    assert found["some: cpu_offload"]["stats"]["seen"]["nbytes"] < found["cpu_offload"]["stats"]["seen"]["nbytes"] / 2
    rows = table((tmp_path / "table").read_text())
    assert [row["length, or share"] for row in rows] == ["64"] * len(found)


def test_what_of_copies_is_beside_computation_is_counted_once_for_each() -> None:
    assert beside([(0, 4), (3, 5)], [(1, 2), (1.5, 3.5)]) == 3.0
    assert beside([(0, 1), (6, 7)], [(2, 3)]) == beside([(0, 1)], []) == 0.0


@pytest.mark.long
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_hidden_copies_are_read_from_the_log_of_the_device(tmp_path: Path, warm: Callable[..., str]) -> None:
    sizes = "--device=sim --network=feed_forward --width=64 --batch=256 --rounds=1 --steps=1 --share=0.5"
    command = ("-m", "benchmarks", "torch_device", *sizes.split(), "--json", str(tmp_path / "rows"))
    done = script(*command, python=warm(*IMPORTED["torch"]))
    found = {name: row["copies"] for name, row in json.loads((tmp_path / "rows").read_text())["found"]["0.5"].items()}
    assert not found["none"]["DtoH"]["nbytes"]
    for way in ("DtoH", "HtoD"):
        assert 0 < found["cpu_offload"][way]["nbytes"] < found["save_on_cpu pinned"][way]["nbytes"]
        assert 0 < found["cpu_offload"][way]["beside"] <= found["cpu_offload"][way]["seconds"]
    rows = {row["method"]: row for row in table(done.stdout)}
    assert float(rows["cpu_offload"]["hidden ms"]) > 0
    assert rows["cpu_offload"]["bars"].startswith(("met", "missed"))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_kernels_of_devices_are_measured(tmp_path: Path, warm: Callable[..., str]) -> None:
    sizes = "--workload=random --device=sim --elements=20480 --rounds=1"
    command = ("-m", "benchmarks", "codecs", *sizes.split(), "--json", str(tmp_path / "rows"))
    script(*command, python=warm(*IMPORTED["torch"]))
    rows = [row for row in json.loads((tmp_path / "rows").read_text())["rows"] if "codec" in row]
    assert {kind_of(row) for row in rows} == {"Affine"}
    assert all(row["encode"] > 0 and row["decode"] > 0 for row in rows)


def kind_of(row: dict[str, Any]) -> str:
    """Return the name of a row's codec, without its settings."""
    return str(row["codec"]).strip("`").partition("(")[0]


@pytest.mark.parametrize("workload", ["torch:resnet", "paddle:gpt"])
def test_every_codec_is_measured_on_what_a_model_saves(
    workload: str, run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Callable[..., str]
) -> None:
    monkeypatch.setattr(sys, "executable", warm(*IMPORTED[workload.partition(":")[0]]))
    report = tmp_path / "table.json"
    small = ("--steps", "1", "--scale", "1", "--rounds", "1", "--most", "1")
    run_here("codecs", "--workload", workload, *small, "--json", str(report))
    found = json.loads(report.read_text())["rows"]
    rows, mixes = ([row for row in found if ("codec" in row) == is_row] for is_row in (True, False))
    assert {row["dtype"] for row in rows} >= {"float32", "bfloat16"}
    assert all(row["ratio"] > 0.99 and row["encode"] > 0 and row["decode"] > 0 for row in rows)
    assert {kind_of(row) for row in rows} >= {"Lossless", "Affine", "AsType", "Sparse"}
    assert len(mixes) == 2
    assert all(mix["limit"] > 1 for mix in mixes)


def test_random_tensors_survive_every_codec(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_codecs.main(["--count", "200", "--seed", "1"]) == 0
    assert "200 tensors, 0 faults" in capsys.readouterr().out


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of the Markdown table in a text, by the heads of their columns."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(heads, row, strict=True)) for row in rows]


@pytest.mark.skipif(not Syscalls().unnamed or not Syscalls().direct, reason="the bare loop needs Linux")
def test_the_disk_store_is_measured_beside_a_bare_loop(run_here: RunHere, tmp_path: Path) -> None:
    printed = run_here("disk", "--directory", str(tmp_path), "--kib", "64", "5000", "--rounds", "1")
    rows = table(printed)
    assert [row["record KiB"] for row in rows] == ["64"] * 4 + ["5000"] * 4
    assert [row["at once"] for row in rows] == ["1", "1", "4", "4"] * 2
    assert all(float(row["bare GB/s"]) > 0 and float(row["store GB/s"]) > 0 for row in rows)


@pytest.mark.skipif(not Syscalls().unnamed or not Syscalls().direct, reason="the bare loop needs Linux")
def test_a_bare_disk_moves_its_share_of_what_is_saved_and_leaves_tensors_alone(tmp_path: Path) -> None:
    x = torch.randn(3, CALL // 4, requires_grad=True)
    disk = BareDisk("0.5", str(tmp_path))
    moved: list[str] = []
    for verb in ("write", "read"):
        setattr(disk._disk, verb, partial(_noted, moved, verb, getattr(disk._disk, verb)))
    for _ in range(2):
        with disk:
            loss = x.exp().square().sum()
        loss.backward()
        disk._thread.submit(int).result()  # it is the last in the queue
    # What exp returns is saved twice and moved once: three times half of a call's bytes in each step.
    assert moved == ["write", "read", "write", "write", "read", "read"]
    expected = torch.autograd.grad(x.exp().square().sum(), x)[0]
    assert torch.equal(x.grad, 2 * expected)


def _noted(moved: list[str], verb: str, call: Callable[[int], None], record: int) -> None:
    moved.append(verb)
    call(record)


@pytest.mark.parametrize(
    ("arguments", "before", "method", "gradients"),
    [
        ("--workload paddle_gpt", [NONE, NONE, CHECKPOINT], "disk_spill", "bitwise"),
        (
            "--set policies --workload gpt --dtype bfloat16 --allocator default --method quantize:bits=2",
            [NONE, CHECKPOINT],
            "quantize:bits=2",
            "differ",
        ),
    ],
    ids=["paddle", "torch"],
)
def test_whole_steps_are_compared(
    arguments: str, before: list[str], method: str, gradients: str, tmp_path: Path, warm: Callable[..., str]
) -> None:
    report = tmp_path / "report.json"
    few = ("--tiny", "--rounds", "1", "--steps", "2", "--json", str(report))
    framework, variables = ("paddle", advice()) if "paddle" in arguments else ("torch", {})
    options = {"python": warm(*IMPORTED[framework], **variables), "environment": os.environ | variables}
    done = script("-m", "benchmarks", "steps", *few, *arguments.split(), **options)

    rows = table(done.stdout)
    assert [row["method"] for row in rows] == [*before, method]
    assert [row["gradients"] for row in rows] == [*[""] * len(before), gradients]
    assert all(float(row["step s"]) > 0 for row in rows)
    assert rows[0]["step of default"] == rows[before.count(NONE) - 1]["of same"] == "1.000"
    for measured in json.loads(report.read_text())["measured"]:
        (run,) = measured["runs"]
        assert (run["stashed_bytes"] > 0) == (measured["variant"]["method"] == method)


@pytest.mark.parametrize("workload", ["gpt", "gpt_dropout", "resnet"])
def test_steps_that_are_compared_compute_the_same(workload: str) -> None:
    found = {}
    for method in (NONE, CHECKPOINT, "compress | disk_spill"):
        model = steps.model_of(steps.Variant(workload, method, threads=torch.get_num_threads()), tiny=True)
        training = build(model)
        training.backward(training.forward(0, small=True))
        training.update()
        with scope_of(NONE if method == CHECKPOINT else method, "torch", min_bytes=0):
            loss = training.forward(0)
        training.backward(loss)
        found[method] = [array.tobytes() for _, array in training.gradients()]
    assert all(gradients == found[NONE] for gradients in found.values())


def test_training_quality_is_reported_as_numbers_and_a_table(tmp_path: Path, warm: Callable[..., str]) -> None:
    some = (
        "--tiny",
        "--policy",
        LOSSY,
        "--seeds",
        "2",
        "--steps",
        "3",
        "--task",
        "paddle/gpt",
        "--task",
        "paddle/resnet",
    )
    kinds = {"markdown": "md", "json": "json"}
    files = [argument for kind, end in kinds.items() for argument in (f"--{kind}", str(tmp_path / f"quality.{end}"))]
    script("-m", "benchmarks", "quality", *files, *some, python=warm(*IMPORTED["paddle"]))

    rows = table((tmp_path / "quality.md").read_text())
    assert [row["policy"] for row in rows] == ["none", LOSSY] * 2
    assert all(0.2 < float(row["bytes"]) < 0.5 for row in rows[1::2])
    assert all(0 < float(row["gradient error, median"]) < 0.1 for row in rows[1::2])
    outcomes = json.loads((tmp_path / "quality.json").read_text())["outcomes"]
    assert [len(found) for found in outcomes.values()] == [4, 4]


@pytest.mark.parametrize("network", ["gpt", "resnet"])
def test_training_quality_is_found_out_in_torch_too(network: str) -> None:
    model = replace(quality.TASKS[f"torch/{network}"], batch=4, depth=2, threads=torch.get_num_threads())
    training, baseline = quality.train(model, NONE, steps=3)
    errors = list(quality.gradient_errors(training, "torch", [LOSSY]))
    _, lossy = quality.train(model, LOSSY, steps=3)
    assert baseline["payload"] == 0
    assert 0.2 < lossy["payload"] < 0.5
    assert lossy["share"] > 0.5
    assert lossy["loss"] == pytest.approx(baseline["loss"], rel=0.1)
    assert 0 < median(error["relative"] for error in errors) < 0.1


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_the_cost_of_a_saved_tensor_is_measured(
    framework: str, run_here: RunHere, monkeypatch: pytest.MonkeyPatch, warm: Callable[..., str]
) -> None:
    monkeypatch.setattr(sys, "executable", warm(*IMPORTED[framework]))
    few = ("--rounds", "2", "--saves", "10", "--kib", "16", "--many", "40")
    rows = table(run_here("hooks", "--framework", framework, *few))
    kept = {row["under"]: row for row in rows if row["saved"] != "large tensors"}
    stashed = {row["under"]: row for row in rows if row["saved"] == "large tensors" and row["under"] != "save_on_cpu"}
    assert {"a pair that does nothing", "Compress", "Keep"} <= set(kept)
    assert all(row["pack"] and not row["copy, pack"] for row in kept.values())
    assert {"host memory, at once", "Quantize(8)", "DiskSpill"} <= set(stashed)
    assert all(float(row["growth, pack"]) > 0 for row in stashed.values())
    copies = {(float(row["copy, pack"]), float(row["copy, unpack"])) for row in stashed.values()}
    assert len(copies) == 1
    assert "copies" not in stashed  # what all are compared with is no row of its own
    here, others = stashed["host memory, at once"]["calls, pack"].split(" + ")
    assert int(here) > int(others)


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [name for name, _ in listed] == NAMES
    assert main(["no_such_benchmark"]) == 2


@pytest.mark.skipif(not Syscalls().unnamed or not Syscalls().direct, reason="the bare loop needs Linux")
def test_a_report_says_what_was_run_where_and_when(run_here: RunHere, tmp_path: Path) -> None:
    written = tmp_path / "report.md"
    run_here("disk", "--directory", str(tmp_path), "--kib", "64", "--rounds", "1", "--markdown", str(written))
    text = written.read_text()
    assert f"`python -m benchmarks disk --directory {tmp_path} --kib 64 --rounds 1 --markdown {written}`" in text
    assert f"numpy {np.__version__}" in text
    assert re.search(r"\d cores, .*\d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert table(text)
