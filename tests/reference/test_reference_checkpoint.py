"""Checkpointing: the same gradients from less saved."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import (
    Generator,
    HookError,
    MemorySpace,
    Tensor,
    check_grads,
    checkpoint,
    grad,
    nn,
    ops,
    save_on_cpu,
    saved_tensors_hooks,
    tensor,
)


def region(x: Tensor) -> Tensor:
    return (x * x).tanh().exp() * x


def leaf() -> Tensor:
    return tensor([0.3, -0.7], "float64", requires_grad=True)


def test_gradients_are_bitwise_those_without_checkpoint() -> None:
    x = leaf()
    (expected,) = grad(region(x * 2).sum(), x)
    (got,) = grad(checkpoint(region, x * 2).sum(), x)
    np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_higher_derivatives_and_nesting() -> None:
    check_grads(lambda x: checkpoint(region, x), [leaf()], order=2)
    check_grads(lambda x: checkpoint(lambda y: checkpoint(region, y) * checkpoint(region, y), x), [leaf()], order=2)


def test_region_keeps_its_arguments_only(sim: MemorySpace) -> None:
    x = tensor(np.ones(1000, np.float32), device="sim:0", requires_grad=True)
    held = sim.allocated_bytes
    y = checkpoint(lambda v: region(v).sum(), x)
    assert sim.allocated_bytes == held + y.nbytes
    y.backward()


def test_surrounding_hooks_see_the_arguments_only() -> None:
    packed = []
    x = leaf()
    with saved_tensors_hooks(lambda t: packed.append(t) or t.detach(), lambda t: t):
        y = checkpoint(region, x)
    y.sum().backward()
    assert len(packed) == 1
    assert packed[0] is x


def test_dropout_is_repeated_and_its_generator_left_where_it_was() -> None:
    noise, weight = Generator(0), tensor(np.ones(100), requires_grad=True)
    model = nn.Dropout(0.5, noise)
    y = checkpoint(lambda w: model(w * 1), weight, generators=[noise])
    after = noise.get_state()
    y.sum().backward()
    np.testing.assert_array_equal(weight.grad.numpy(), y.detach().numpy())
    assert noise.get_state() == after


def test_parameters_inside_get_their_gradients_and_graphs_may_be_retained() -> None:
    model = nn.TransformerLM(11, 6, 8, 2, 2, generator=Generator(0), dtype="float64")
    indices = tensor(np.arange(12).reshape(2, 6) % 11)
    parameters = list(model.parameters())
    expected = grad(ops.cross_entropy(model(indices), indices), parameters)
    for block in model.blocks:
        block.forward = lambda x, inner=block.forward: checkpoint(inner, x)
    loss = ops.cross_entropy(model(indices), indices)
    for retain in (True, False):
        found = grad(loss, parameters, retain_graph=retain)
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(found, expected, strict=True))


def test_offloading_inside_and_around_composes() -> None:
    x = leaf()
    (expected,) = grad(region(x).sum(), x)

    def offloaded(v: Tensor) -> Tensor:
        with save_on_cpu():
            return region(v)

    with save_on_cpu():
        y = checkpoint(offloaded, x)
    np.testing.assert_array_equal(grad(y.sum(), x)[0].numpy(), expected.numpy())


def test_region_that_differs_the_second_time_is_reported() -> None:
    runs = []

    def unstable(x: Tensor) -> Tensor:
        runs.append(1)
        return x.exp() if len(runs) == 1 else x * x

    with pytest.raises(HookError, match="saved 2 tensors, the first 1"):
        checkpoint(unstable, leaf()).sum().backward()
