"""What a model saves is said without running it."""

import pytest
import torch
from architectures import ARCHITECTURES
from torch import nn

import tensorstash as ts
from tensorstash.errors import BackendError


def measured(model, inputs):
    """Return the bytes that a real forward pass saves, each memory once."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved = []

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.append(tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(**inputs)
    del output
    return sum({(tensor.data_ptr(), tensor.nbytes): tensor.nbytes for tensor in saved}.values())


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "resnet", "lstm"])
def test_what_is_said_is_what_a_step_saves(name):
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = ts.estimate(model, **inputs)
    assert found.is_imagined == (name != "lstm")
    assert torch.equal(torch.get_rng_state(), state) == found.is_imagined  # the others are run, with dropout
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.nbytes == sum(row.nbytes for row in found.rows)
    assert found.nbytes == pytest.approx(measured(model, inputs), rel=0.05)
    assert found.left["cpu_offload"] == found.nbytes
    assert {row.module for row in found.rows} & {name for name, _ in model.named_modules()}


def test_nothing_is_allocated():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2**16, 2**16), nn.GELU(), nn.Linear(2**16, 1))
        inputs = torch.empty(2**20, 2**16)
    found = ts.estimate(model, inputs)
    assert found.nbytes == 3 * 2**20 * 2**16 * 4
    assert found.left["disk_spill"] == 0
    assert "768 GiB" in str(found)


class Dropping(nn.Module):
    def forward(self, x):
        dropped, result = x.exp(), x.tanh()
        del dropped
        return result


class Looking(nn.Module):
    def forward(self, x):
        return x.exp() if x.sum() > 0 else x


def test_what_goes_again_before_the_end_is_not_counted():
    found = ts.estimate(Dropping(), torch.randn(64, 64, requires_grad=True))
    assert found.nbytes == 64 * 64 * 4


def test_a_model_that_looks_at_its_values_is_told_what_to_do():
    with pytest.raises(BackendError, match="decides by the elements of tensors"):
        ts.estimate(Looking(), torch.randn(8, 8, requires_grad=True))
