"""What the graph has not made, and whatever else somebody holds: results are those without hooks, at every moment.

Run ``TENSORSTASH_BATCH_NORM_STEPS=5000 pytest tests/torch/test_torch_user_memory.py`` for the long search.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from memory_programs import LIMITS, POLICIES, UNVERSIONED, Moment, differences
from submissions import Submissions
from torch import Tensor, nn

import tensorstash as ts

STEPS = int(os.environ.get("TENSORSTASH_BATCH_NORM_STEPS", "20"))
CHANNELS = 20_000

LAYERS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (nn.BatchNorm1d, ()),
    "BatchNorm2d": (nn.BatchNorm2d, (1, 2)),
    "InstanceNorm1d": (lambda channels: nn.InstanceNorm1d(channels, affine=True, track_running_stats=True), (3,)),
}


@pytest.fixture
def submissions(monkeypatch) -> Submissions:
    return Submissions.watch(monkeypatch)


@pytest.fixture
def as_without_hooks(tmp_path, submissions, same_bits):
    """Assert that a program computes, whatever a session does meanwhile, what it computes without."""

    def check(program: Callable[[Moment], object]) -> None:
        assert differences(program, str(tmp_path), submissions, same_bits) == []

    return check


# One layer alone saves less than the default limits let be under way, and a copy in memory gains nothing.
@pytest.mark.filterwarnings("ignore:limits are larger than:tensorstash.TensorStashWarning")
@pytest.mark.filterwarnings("ignore:the policy shrinks nothing:tensorstash.TensorStashWarning")
@pytest.mark.timeout(0 if STEPS > 500 else 300)
@pytest.mark.parametrize("limits", ["default", "synchronous"])
@pytest.mark.parametrize("policy", ["memory", "compress | disk"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_with_running_statistics_train(layer, policy, limits, tmp_path, same_bits):
    make, rest = LAYERS[layer]

    def setting():
        torch.manual_seed(0)
        return make(CHANNELS), torch.randn(2, CHANNELS, *rest, requires_grad=True)

    def step(model, x):
        model.zero_grad()
        x.grad = None
        (model(x * 1.0) * x).sum().backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    plain, stashed = setting(), setting()
    stash = ts.stash(POLICIES[policy](str(tmp_path)), framework="torch", min_bytes=2**10, limits=LIMITS[limits])
    for number in range(STEPS):
        expected = step(*plain)
        with stash:
            found = step(*stashed)
        assert same_bits(expected, found), f"step {number}"
    assert stash.stats().stashed.tensors > 0


def staged(host):
    return torch.from_numpy(host)


def reused(host):
    """Memory of PyTorch that the user fills as NumPy does, like a page-locked staging buffer."""
    return torch.empty(host.shape).copy_(torch.from_numpy(host))


# Memory of NumPy is kept, and nothing else is saved here.
@pytest.mark.filterwarnings("ignore:nothing was stashed:tensorstash.TensorStashWarning")
@pytest.mark.parametrize("keeps_loss", [True, False], ids=["the loss is held", "the loss is dropped"])
@pytest.mark.parametrize("kind", [staged, reused])
def test_a_staging_buffer_refilled_for_each_batch(kind, keeps_loss, as_without_hooks):
    def program(moment):
        host, losses = np.zeros((4, 50), np.float32), []
        buffer = kind(host)
        weight = torch.ones(4, 50, requires_grad=True)
        gradients = []
        for batch in range(4):
            buffer.numpy()[...] = batch + 1
            with moment():
                loss = (weight * buffer).sum()
            moment.between()
            if keeps_loss:
                losses.append(loss)  # batches without backward
            if batch % 2:
                loss.backward()
                gradients.append(weight.grad.clone())
        for loss in losses[::2]:
            loss.backward()
            gradients.append(weight.grad.clone())
        return gradients

    as_without_hooks(program)


def an_input():
    return torch.randn(6, 20), None


def a_row_of_a_buffer():
    buffer = torch.randn(5, 6, 20)
    return buffer[2], buffer


def every_second_column():
    buffer = torch.randn(6, 40)
    return buffer[:, ::2], buffer


def an_activation():
    leaf = torch.randn(6, 20, requires_grad=True)
    return leaf * 1.0, leaf


def an_activation_that_its_operation_saves():
    leaf = torch.randn(6, 20, requires_grad=True)
    return (leaf * 1.0).tanh(), leaf


def a_detached_parameter():
    weight = nn.Parameter(torch.randn(6, 20))
    return weight.detach(), weight


def the_data_of_a_parameter():
    weight = nn.Parameter(torch.randn(6, 20))
    return weight.data, weight


SAVED = [
    an_input,
    a_row_of_a_buffer,
    every_second_column,
    an_activation,
    an_activation_that_its_operation_saves,
    a_detached_parameter,
    the_data_of_a_parameter,
]


PARTS_OF_A_STORAGE = (a_row_of_a_buffer, every_second_column)


@pytest.mark.parametrize(
    ("saved", "way"),
    [(saved, way) for saved in SAVED for way in UNVERSIONED if way != "storage" or saved not in PARTS_OF_A_STORAGE],
)
def test_a_write_without_a_bump_between_two_saves_and_after_them(saved, way, as_without_hooks):
    write = UNVERSIONED[way]

    def program(moment):
        weight = torch.randn(6, 20, requires_grad=True)
        tensor, owner = saved()
        version = tensor._version
        with moment():
            out = weight * tensor
            moment.between()
            write(tensor, torch.full((6, 20), 2.0))
            out = out + (weight * tensor).tanh()
            moment.between()
        write(tensor, torch.full((6, 20), 3.0))
        moment.between()
        with moment():
            other = weight * tensor
        moment.between()
        write(tensor, torch.full((6, 20), 5.0))
        assert tensor._version == version
        (out + other).sum().backward()
        grads = [weight.grad.clone(), tensor.detach().clone()]
        return grads + ([owner.grad] if owner is not None else [])

    as_without_hooks(program)


@pytest.mark.parametrize("way", ["data", "numpy", "dlpack", "set_"])
def test_indices_and_masks_rewritten_without_a_bump(way, as_without_hooks):
    write = UNVERSIONED[way]

    def program(moment):
        table = torch.randn(9, 20, requires_grad=True)
        index, mask = torch.arange(6), torch.tensor([True, False, True, True, False, True])
        with moment():
            out = table[index] * 2.0
            out = torch.where(mask[:, None], out, out.tanh())
            out = out.masked_fill(mask[:, None], 0.5) + torch.nn.functional.embedding(index, table)
            moment.between()
            write(index, index.flip(0) + 3)
            write(mask, ~mask)
            out = out + table.index_select(0, index) + torch.where(mask[:, None], out, out.tanh())
        moment.between()
        write(index, index.clamp(max=1))
        out.sum().backward()
        return [table.grad]

    as_without_hooks(program)


@pytest.mark.parametrize("holds", ["tensor", "view", "storage", "array", "capsule", "alias"])
def test_whoever_holds_the_memory_may_write_into_it_when_the_tensor_itself_is_gone(holds, as_without_hooks):
    hold: Callable[[Tensor], Tensor] = {
        "tensor": lambda tensor: tensor,
        "view": lambda tensor: tensor[1:3],
        "storage": lambda tensor: tensor.detach().untyped_storage(),
        "array": lambda tensor: tensor.detach().numpy(),
        "capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor.detach()),
        "alias": lambda tensor: torch.empty(0).set_(tensor.detach()),
    }[holds]

    def write(held):
        match holds:
            case "storage":
                held.copy_(torch.full((6, 20), 7.0).untyped_storage(), False)
            case "array":
                held[...] = 7.0
            case "capsule":
                torch.from_dlpack(held).fill_(7.0)
            case _:
                held.data.fill_(7.0)

    def program(moment):
        leaf = torch.randn(6, 20, requires_grad=True)
        with moment():
            inner = leaf * 1.0
            held = hold(inner)
            out = inner.exp() * inner
            del inner
            out = (out * 1.0).tanh().tanh()  # time passes for the engine, too
            moment.between()
            out = out.tanh()
        moment.between()
        write(held)
        out.sum().backward()
        return [leaf.grad]

    as_without_hooks(program)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("alias", ["itself", "detach", "data", "view"])
def test_a_fused_optimizer_between_two_graphs(kind, alias, as_without_hooks):
    def program(moment):
        weight = nn.Parameter(torch.randn(6, 20))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.5, fused=True)
        inputs = torch.randn(6, 20, requires_grad=True)
        gradients = []

        def forward():
            seen = {"itself": weight, "detach": weight.detach(), "data": weight.data, "view": weight.view(20, 6).T}
            factor = seen[alias] if alias != "view" else seen[alias].reshape(6, 20)
            return (inputs * factor).tanh().sum() + weight.square().sum()

        with moment():
            held = forward()  # of which nothing is asked before the third step
        for _ in range(2):
            weight.grad = None
            with moment():
                loss = forward()
            moment.between()
            loss.backward()
            gradients += [weight.grad.clone(), inputs.grad.clone()]
            optimizer.step()
            moment.between()
        weight.grad = None
        held.backward()
        return [*gradients, weight.grad, inputs.grad, weight.detach()]

    as_without_hooks(program)


@pytest.mark.parametrize("order", ["train then eval", "eval then train", "train, eval, train"])
@pytest.mark.parametrize("layer", LAYERS)
def test_running_statistics_in_training_and_evaluation_of_one_graph(layer, order, as_without_hooks):
    make, rest = LAYERS[layer]

    def program(moment):
        model, x = make(8), torch.randn(4, 8, *rest, requires_grad=True)
        total = 0.0
        with moment():
            for mode in order.replace(",", "").replace(" then", "").split():
                model.train(mode == "train")
                total = total + model(x * 1.0).square().sum()
                moment.between()
        total.backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    as_without_hooks(program)
