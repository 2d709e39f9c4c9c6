"""Modules and layers."""

import numpy as np

from tensorstash.reference import Parameter, Tensor, nn, tensor, zeros


def linear(seed: int = 0) -> nn.Linear:
    return nn.Linear(2, 2, generator=np.random.default_rng(seed))


def test_names_of_modules_and_state() -> None:
    model = nn.Sequential(linear(), nn.GELU(), linear(1))
    model.mean = zeros((2,))  # type: ignore[attr-defined]
    assert [name for name, _ in model.named_modules()] == ["", "layers.0", "layers.1", "layers.2"]
    weights = [f"layers.{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")]
    assert list(model.state_dict()) == ["mean", *weights]
    assert len(list(model.parameters())) == 4


def test_shared_parameter_is_given_once() -> None:
    model = nn.Sequential(linear(), linear(1))
    model.layers[1].weight = model.layers[0].weight
    assert len(list(model.parameters())) == 3
    assert len(model.state_dict()) == 4


def test_forward_of_an_instance_can_be_replaced_and_put_back() -> None:
    model = linear()
    original = model.forward
    model.forward = lambda x: original(x) * 0  # type: ignore[method-assign]
    assert model(zeros((1, 2))).tolist() == [[0.0, 0.0]]
    del model.forward
    assert model(zeros((1, 2))).tolist() == [model.bias.tolist()]
    assert len(list(model.parameters())) == 2


def test_parameter_shares_the_memory_it_is_made_of() -> None:
    values = zeros((2,))
    parameter = Parameter(values)
    values.add_(1.0)
    assert parameter.tolist() == [1.0, 1.0]
    assert parameter.requires_grad
    assert isinstance(parameter, Tensor)


def test_gelu_of_zero_is_zero_and_of_large_numbers_the_positive_part() -> None:
    assert nn.GELU()(tensor([0.0, 50.0, -50.0])).tolist() == [0.0, 50.0, 0.0]
