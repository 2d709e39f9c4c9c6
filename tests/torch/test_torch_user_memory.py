"""What the graph has not made, and whatever else somebody holds: results are those without hooks, at every moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from memory_programs import UNVERSIONED, Moment, Writing, moments, result
from torch import Tensor, nn

from tensorstash.backends.torch.backend import TorchBackend
from tests.samples import pairwise


def leaf():
    return torch.randn(6, 20, requires_grad=True)


SAVED = {
    "an input": lambda: (torch.randn(6, 20), None),
    "a row of a buffer": lambda: ((buffer := torch.randn(5, 6, 20))[2], buffer),
    "every second column": lambda: ((buffer := torch.randn(6, 40))[:, ::2], buffer),
    "an activation": lambda: ((of := leaf()) * 1.0, of),
    "an activation that its operation saves": lambda: (((of := leaf()) * 1.0).tanh(), of),
    "a detached parameter": lambda: ((weight := nn.Parameter(torch.randn(6, 20))).detach(), weight),
    "the data of a parameter": lambda: ((weight := nn.Parameter(torch.randn(6, 20))).data, weight),
}
PARTS = "a row of a buffer", "every second column"


@pytest.mark.parametrize(
    ("saved", "way", "third"),
    # A tensor meets every setting, and a way to write too, but both together only a third of them.
    pairwise(SAVED, UNVERSIONED, range(3), exists=lambda saved, way, _: (saved in PARTS, way) != (True, "storage")),
)
def test_a_write_without_a_bump_between_two_saves_and_after_them(saved, way, third, as_without_hooks):
    write = UNVERSIONED[way]

    def program(moment):
        weight = torch.randn(6, 20, requires_grad=True)
        tensor, owner = SAVED[saved]()
        version = TorchBackend().version(tensor)
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
        assert TorchBackend().version(tensor) == version
        (out + other).sum().backward()
        grads = [weight.grad.clone(), tensor.detach().clone()]
        return grads + ([owner.grad] if owner is not None else [])

    as_without_hooks(program, third)


def fill(tensor):
    tensor.data.fill_(7.0)


HELD: dict[str, tuple[Callable[[Tensor], object], Callable[..., object]]] = {
    "tensor": (lambda tensor: tensor, fill),
    "view": (lambda tensor: tensor[1:3], fill),
    "alias": (lambda tensor: torch.empty(0).set_(tensor.detach()), fill),
    "storage": (
        lambda tensor: tensor.detach().untyped_storage(),
        lambda storage: storage.copy_(torch.full((6, 20), 7.0).untyped_storage(), False),
    ),
    "array": (lambda tensor: tensor.detach().numpy(), lambda array: array.fill(7.0)),
    "capsule": (
        lambda tensor: torch.utils.dlpack.to_dlpack(tensor.detach()),
        lambda capsule: torch.from_dlpack(capsule).fill_(7.0),
    ),
}


@pytest.mark.parametrize(("hold", "write"), HELD.values(), ids=HELD)
def test_whoever_holds_the_memory_may_write_into_it_when_the_tensor_itself_is_gone(hold, write, as_without_hooks):
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


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
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


@pytest.mark.parametrize("order", ["train eval", "eval train", "train eval train"])
def test_running_statistics_in_training_and_evaluation_of_one_graph(order, as_without_hooks):
    def program(moment):
        model, x = nn.BatchNorm1d(8), torch.randn(4, 8, requires_grad=True)
        total = 0.0
        with moment():
            for mode in order.split():
                model.train(mode == "train")
                total = total + model(x * 1.0).square().sum()
                moment.between()
        total.backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    as_without_hooks(program)


@pytest.mark.parametrize("change", ["modified", "freed"])
def test_what_nobody_asks_for_is_no_trouble_to_anything_later(change, as_without_hooks):
    def program(moment: Moment):
        leaf = torch.randn(6, 20, requires_grad=True)
        with moment():
            inner = (leaf * 1.0).detach()
            unused = (leaf * inner).sum()
            moment.between()
            if change == "modified":
                inner.add_(1.0)
            else:
                inner.untyped_storage().resize_(0)
            del inner
            loss = (leaf * 1.0).tanh().sum()
            moment.between()
        with moment():
            loss = loss + (leaf * 1.0).exp().sum()
        loss.backward()
        return [leaf.grad, loss, unused]

    as_without_hooks(program)


def written_in_backward(bumps, holds):
    def program(moment: Moment):
        leaf = torch.randint(-1, 2, (60, 20)).float().requires_grad_()  # which shrinks, so that every policy moves it
        with moment():
            inner = leaf * 1.0
            out = Writing.apply(inner, bumps)
            held = inner if holds else None
            del inner
            out = out.tanh().tanh()
            moment.between()
            out = out.tanh()
        gradients = []
        for _ in range(3):
            leaf.grad = None
            out.sum().backward(retain_graph=True)
            gradients.append(leaf.grad)
            moment.between()
        return [*gradients, held]

    return program


BUMPS = pytest.mark.parametrize("bumps", [False, True], ids=["without a bump", "with a bump"])


@BUMPS
def test_a_backward_that_writes_into_what_is_held_does_what_it_does_without_hooks(bumps, as_without_hooks):
    as_without_hooks(written_in_backward(bumps, True))


@BUMPS
def test_a_backward_that_writes_into_what_it_shares_changes_it_for_itself_alone(bumps, tmp_path, submissions):
    def program(moment: Moment):
        leaf = torch.randint(-1, 2, (60, 20)).float().requires_grad_()
        weight = torch.ones(60, 20, requires_grad=True)
        with moment():
            inner = leaf * 1.0
            other = weight * inner
            out = Writing.apply(inner, bumps)  # made last, so that its backward runs first
            del inner
            moment.between()
        (out.sum() + other.sum()).backward()
        return [weight.grad - leaf.detach()]

    for name, moment in moments(str(tmp_path), submissions):
        (difference,) = result(program, moment)
        assert not difference.any(), name


@BUMPS
def test_a_backward_that_writes_into_what_nobody_else_holds_does_the_same_at_every_moment(
    bumps, tmp_path, submissions, same_bits
):
    program = written_in_backward(bumps, False)
    found = {name: result(program, moment) for name, moment in moments(str(tmp_path), submissions)}
    assert {name: value for name, value in found.items() if isinstance(value, str)} == {}
    for name, value in found.items():
        assert same_bits(value[:3], [value[0]] * 3), name  # backward had memory of its own each time
