"""Two processes over gloo: gradients are bitwise those without hooks, and no weight is copied."""

import json
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.processes import output_of

WORKER = Path(__file__).with_name("distributed_worker.py")
WEIGHT_SHAPES = ([16, 64], [64, 16])

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build has no torch.distributed")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each of two ranks reports, by the way to parallelize."""
    ranks = json.loads(output_of(WORKER, tmp_path_factory.mktemp("rendezvous") / "store").splitlines()[-1])
    return {kind: [rank[kind] for rank in ranks] for kind in ranks[0]}


RECOMPUTING = ["ddp", "ddp_gradient_views", "fsdp2", "fsdp2_keeping", "fsdp2_bf16"]


@pytest.mark.parametrize("kind", [*RECOMPUTING, "fsdp1", "tensor_parallel"])
def test_gradients_are_bitwise_those_without_hooks(reports, kind):
    assert len(reports[kind]) == 2
    for report in reports[kind]:
        assert report["different"] == []
        assert report["gradients"] > 10
        assert report["stashed"] > 10


@pytest.mark.parametrize("kind", RECOMPUTING)
def test_what_is_made_again_of_parameters_is_made_of_those_that_backward_has_gathered(reports, kind):
    for report in reports[kind]:
        # A cast of a weight that autograd does not save is stored; statistics of bfloat16 do not tell eps.
        others = [reason for reason in report["refused"] if "parameter that autograd has not saved" not in reason]
        assert not others or kind == "fsdp2_bf16"
        made = report["recomputed"]
        assert sum(made[rule] for rule in made if "layer_norm" in rule) > 0
        assert kind == "fsdp2_bf16" or any("cast" in rule for rule in made)  # that one casts weights itself
        assert all(made.values())


@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp2", "fsdp2_keeping", "fsdp2_bf16"])
def test_no_weight_is_copied(reports, kind):
    for report in reports[kind]:
        assert "view of a parameter" in report["reasons"]
        assert not [shape for shape in report["copied"] if shape in WEIGHT_SHAPES]


def test_distributed_tensors_are_kept(reports):
    assert all("subclass" in report["reasons"] for report in reports["tensor_parallel"])
