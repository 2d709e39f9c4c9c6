"""What a model saves is said without running it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tensorstash as ts  # noqa: E402
from tensorstash.errors import BackendError  # noqa: E402


class Recurrent(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two layers of an LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.LSTM(32, 64, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(64, 100)

    def forward(self, x: Any) -> Any:
        """Return scores for every step."""
        return self.head(self.cells(x)[0]).log_softmax(-1)


def gpt() -> tuple[Any, tuple[Any, ...]]:
    """Return a small GPT-2 and a batch."""
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=211, n_positions=64, use_cache=False)
    return transformers.GPT2LMHeadModel(config), (torch.randint(0, 211, (4, 48)),)


def resnet() -> tuple[Any, tuple[Any, ...]]:
    """Return a small ResNet and a batch."""
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    return transformers.ResNetModel(config), (torch.randn(4, 3, 64, 64),)


def lstm() -> tuple[Any, tuple[Any, ...]]:
    """Return an LSTM and a batch."""
    return Recurrent(), (torch.randn(4, 24, 32),)


MODELS = [gpt, resnet, lstm]


def measured(model: Any, inputs: tuple[Any, ...]) -> int:
    """Return the bytes that a real forward pass saves, each memory once."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved.append(tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(*inputs)
    del output
    return sum({(tensor.data_ptr(), tensor.nbytes): tensor.nbytes for tensor in saved}.values())


@pytest.mark.parametrize("made", MODELS)
def test_what_is_said_is_what_a_step_saves(made: Any) -> None:
    torch.manual_seed(0)
    model, inputs = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = ts.estimate(model, *inputs)
    assert found.is_imagined == (made is not lstm)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.nbytes == sum(row.nbytes for row in found.rows)
    assert found.nbytes == pytest.approx(measured(model, inputs), rel=0.05)
    assert found.left["cpu_offload"] == found.nbytes
    assert {row.module for row in found.rows} & {name for name, _ in model.named_modules()}


def test_nothing_is_allocated() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(2**16, 2**16), torch.nn.GELU(), torch.nn.Linear(2**16, 1))
        inputs = torch.empty(2**20, 2**16)
    found = ts.estimate(model, inputs)
    assert found.nbytes == 3 * 2**20 * 2**16 * 4
    assert found.left["disk_spill"] == 0
    assert "768 GiB" in str(found)


def test_what_goes_again_before_the_end_is_in_the_peak_alone() -> None:
    class Dropping(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            dropped, result = x.exp(), x.tanh()
            del dropped
            return result

    found = ts.estimate(Dropping(), torch.randn(64, 64, requires_grad=True))
    assert found.nbytes == 64 * 64 * 4
    assert found.peak == 2 * found.nbytes


def test_a_model_that_looks_at_its_values_is_told_what_to_do() -> None:
    class Looking(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.exp() if x.sum() > 0 else x

    with pytest.raises(BackendError, match="decides by the elements of tensors"):
        ts.estimate(Looking(), torch.randn(8, 8, requires_grad=True))
