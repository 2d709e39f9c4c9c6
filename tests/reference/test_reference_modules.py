"""Modules, layers and optimizers."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstash.reference import Generator, Parameter, Tensor, nn, no_grad, ops, optim, tensor, zeros


def small() -> nn.Sequential:
    generator = Generator(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, generator=generator), nn.BatchNorm(2), nn.ReLU(), nn.Dropout(0.5, generator)
    )


def test_names_of_parameters_modules_and_state() -> None:
    model = small()
    assert [name for name, _ in model.named_parameters()] == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
    ]  # fmt: skip
    assert [name for name, _ in model.named_modules()] == ["", "layers.0", "layers.1", "layers.2", "layers.3"]
    assert set(model.state_dict()) - {name for name, _ in model.named_parameters()} == {
        "layers.1.running_mean", "layers.1.running_variance",
    }  # fmt: skip


def test_shared_parameter_is_named_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, generator=Generator(0)), nn.Linear(2, 2, generator=Generator(1)))
    model.layers[1].weight = model.layers[0].weight
    assert [name for name, _ in model.named_parameters()] == ["layers.0.weight", "layers.0.bias", "layers.1.bias"]
    assert len(model.state_dict()) == 4


def test_state_round_trip_and_refusal() -> None:
    model, other = small(), small()
    with no_grad():
        for value in model.state_dict().values():
            value.fill_(3.0)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    other.load_state_dict(state)
    assert all((value.numpy() == 3.0).all() for value in other.state_dict().values())
    state["extra"] = state.pop("layers.0.bias")
    with pytest.raises(KeyError, match=r"missing \['layers.0.bias'\], unknown \['extra'\]"):
        other.load_state_dict(state)


def test_training_mode_reaches_every_module() -> None:
    model = small()
    assert model.eval() is model
    assert not any(module.training for _, module in model.named_modules())
    x = tensor(np.ones((1, 1, 4, 4), np.float32))
    np.testing.assert_array_equal(model(x).detach().numpy(), model(x).detach().numpy())
    model.train()
    assert all(module.training for _, module in model.named_modules())


def test_forward_of_an_instance_can_be_replaced_and_put_back() -> None:
    model = nn.Linear(2, 2, generator=Generator(0))
    original = model.forward
    model.forward = lambda x: original(x) * 0  # type: ignore[method-assign]
    assert model(zeros((1, 2))).tolist() == [[0.0, 0.0]]
    del model.forward
    assert model(zeros((1, 2))).tolist() == [model.bias.tolist()]
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]


def test_parameter_shares_the_memory_it_is_made_of() -> None:
    values = zeros((2,))
    parameter = Parameter(values)
    values.add_(1.0)
    assert parameter.tolist() == [1.0, 1.0]
    assert parameter.requires_grad
    assert isinstance(parameter, Tensor)


def test_batch_norm_tracks_statistics() -> None:
    norm = nn.BatchNorm(2, momentum=0.5)
    x = np.random.default_rng(0).normal(3, 2, (8, 2, 4)).astype(np.float32)
    norm(tensor(x))
    np.testing.assert_allclose(norm.running_mean.numpy(), x.mean((0, 2)) / 2, rtol=1e-5)
    np.testing.assert_allclose(norm.running_variance.numpy(), 0.5 + x.var((0, 2), ddof=1) / 2, rtol=1e-5)


def test_dropout_scales_what_it_keeps() -> None:
    x = tensor(np.ones(10_000, np.float32))
    y = nn.Dropout(0.25, Generator(0))(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(y.mean() - 1) < 0.02
    with pytest.raises(ValueError, match="between 0 and 1"):
        nn.Dropout(1.5, Generator(0))
    assert nn.Dropout(1.0, Generator(0))(x).sum().item() == 0.0


def test_generator_repeats_from_its_state() -> None:
    generator = Generator(3)
    state = generator.get_state()
    first = generator.normal((4,)).tolist()
    generator.set_state(state)
    assert generator.normal((4,)).tolist() == first
    generator.manual_seed(3)
    assert generator.normal((4,)).tolist() == first


def test_momentum_and_adam_follow_their_recurrences() -> None:
    for make, expected in (
        (lambda p: optim.SGD([p], lr=0.1, momentum=0.5), [1 - 0.2, 1 - 0.2 - 0.3]),
        (lambda p: optim.Adam([p], lr=0.1), [0.9, 0.8]),
    ):
        p = Parameter(tensor([1.0], "float64"))
        idle = Parameter(tensor([1.0], "float64"))
        optimizer = make(p)
        optimizer.parameters.append(idle)
        for value in expected:
            optimizer.zero_grad()
            (p * 2).sum().backward()
            optimizer.step()
            np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-7)
        assert (idle.item(), p._version) == (1.0, 2)


def test_bad_filters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs filters of shape \(n, 3, k, k\)"):
        ops.conv2d(zeros((1, 3, 4, 4)), zeros((2, 1, 3, 3)))
    with pytest.raises(ValueError, match="cannot be shared"):
        nn.MultiheadAttention(10, 3, generator=Generator(0))
