"""Two processes, a device each, and the average of their gradients: parameters are those without a policy."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build has no torch.distributed")

Reports = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Return what each of two processes has found, by model and way."""
    folder = tmp_path_factory.mktemp("parallel")
    command = [sys.executable, "-m", "tests.device.data_parallel_worker", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: Reports = {}
    for report in (json.loads(line) for line in done.stdout.splitlines()):
        found.setdefault((report["model"], report["way"]), []).append(report)
    return found


def parameters(reports: Reports, model: str, way: str) -> str:
    """Return the parameters that both processes have come to."""
    first, second = reports[model, way]
    assert first["parameters"] == second["parameters"]
    found: str = first["parameters"]
    return found


@pytest.mark.parametrize("model", ["language", "images"])
def test_parameters_are_to_the_bit_those_without_a_policy(reports: Reports, model: str) -> None:
    plain = parameters(reports, model, "plain")
    assert parameters(reports, model, "offloaded") == plain
    assert parameters(reports, model, "spilled") == plain


def test_parameters_are_those_of_what_was_quantized_and_stayed(reports: Reports) -> None:
    stayed = parameters(reports, "images", "quantized")
    assert parameters(reports, "images", "quantized and offloaded") == stayed != parameters(reports, "images", "plain")


def test_tensors_were_moved_and_nothing_waited(reports: Reports) -> None:
    for (_, way), found in reports.items():
        assert all(bool(report["moved"]) == (way != "plain") and not report["waits"] for report in found)
