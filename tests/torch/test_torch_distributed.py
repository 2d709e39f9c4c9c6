"""Two processes over gloo: gradients are bitwise those without hooks, and no weight is copied."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

WORKER = Path(__file__).with_name("distributed_worker.py")
WEIGHT_SHAPES = ([16, 64], [64, 16], [8, 64], [32, 16], [16, 32])

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build has no torch.distributed")


def run(kind, directory, ranks=2):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), kind, str(rank), str(ranks), str(directory / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize(
    "kind", ["ddp", "ddp_gradient_views", "fsdp1", "fsdp2", "fsdp2_keeping", "fsdp2_bf16", "tensor_parallel"]
)
def test_gradients_are_bitwise_those_without_hooks(kind, tmp_path):
    for report in run(kind, tmp_path):
        assert report["gradients"] > 10
        assert report["repeatable"]
        assert report["copied_equal"]
        assert report["stashed_equal"]
        assert report["wrapped_equal"]
        assert report["stashed"] > 10
        assert "view of a parameter" in report["reasons"] or kind == "tensor_parallel"
        assert not [shape for shape in report["copied"] if shape in WEIGHT_SHAPES]
        if kind == "tensor_parallel":
            assert "subclass" in report["reasons"]
