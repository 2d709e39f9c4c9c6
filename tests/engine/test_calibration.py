"""Bits that a session chooses after its first step, on real small models."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorstash as ts
from tensorstash.backends import backend_named
from tensorstash.codecs import Affine, AutoAffine
from tensorstash.engine.session import Session
from tensorstash.errors import ConfigError
from tensorstash.policies.limits import Limits
from tensorstash.testing.contents import dense_spec

torch = pytest.importorskip("torch")


def network() -> Any:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(64, 256), torch.nn.Linear(256, 512)
    return torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.GELU(), torch.nn.Linear(512, 10))


def trained(session: Any, steps: int, model: Any) -> list[float]:
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(128, 64, generator=generator) ** 3
        with session.scope():
            loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def new_session(policy: Any) -> Session[Any]:
    return Session(policy, backend_named("torch"), min_bytes=0, limits=Limits())


@pytest.mark.parametrize("budget", [2, 3, 4, 5.5, 8])
def test_the_average_keeps_to_the_budget_and_uses_it(budget: float) -> None:
    session = new_session(ts.Quantize("auto", budget=budget))
    model = network()
    trained(session, 1, model)
    for step in range(3):  # nothing is asked back, so that every payload counts
        with session.scope():
            loss = model(torch.randn(128, 64)).square().mean()
        session.drain()
        assert session.calibration.is_settled, step
        del loss
    assert len(session.calibration.chosen) >= 4
    assert all(isinstance(codec, Affine) for codec in session.calibration.chosen.values())
    stage = session.stats().stages["affine"]
    parameters = 2 * 32 / 128
    average = 32 * stage.bytes_out / stage.bytes_in - parameters
    assert budget - 2 < average <= budget + 0.05


def test_the_same_training_makes_the_same_choice() -> None:
    runs = []
    for _ in range(2):
        session = new_session(ts.Quantize("auto", budget=3.5))
        trained(session, 2, network())
        runs.append(session.calibration.chosen)
    assert runs[0] == runs[1]


def test_choices_are_fixed_after_the_first_step() -> None:
    session = new_session(ts.Quantize("auto", budget=4))
    model = network()
    trained(session, 1, model)
    assert not session.calibration.chosen
    trained(session, 1, model)
    first = dict(session.calibration.chosen)
    assert first
    trained(session, 3, model)
    assert session.calibration.chosen == first
    assert session.stats().stages["affine"].tensors > 0


def test_more_bits_go_where_they_lessen_the_error_most() -> None:
    rng = np.random.default_rng(0)
    codec = AutoAffine(budget=4)
    easy = np.where(rng.random((64, 128)) < 0.5, 0, 3).astype(np.float32)  # two values: 2 bits are exact
    hard = rng.standard_normal((64, 128)).astype(np.float32)
    measured = {
        name: (data.size, codec.measure(data, dense_spec(data.shape, "float32")))
        for name, data in {"easy": easy, "hard": hard}.items()
    }
    chosen = codec.choose(measured)
    assert (chosen["easy"], chosen["hard"]) == (Affine(bits=2), Affine(bits=4))
    assert AutoAffine(budget=5).choose(measured)["hard"] == Affine(bits=8)


def test_the_error_is_smaller_than_that_of_equal_bits_at_the_same_size() -> None:
    rng = np.random.default_rng(1)
    tensors: dict[str, Any] = {f"t{k}": rng.standard_normal((128, 128)).astype(np.float32) for k in range(4)}
    tensors |= {f"few values {k}": rng.integers(0, 4, (128, 128)).astype(np.float32) for k in range(4)}
    codec = AutoAffine(budget=4)
    specs = {name: dense_spec(data.shape, "float32") for name, data in tensors.items()}
    chosen = codec.choose({name: (data.size, codec.measure(data, specs[name])) for name, data in tensors.items()})

    def error(pick: Callable[[str], Any]) -> float:
        total = 0.0
        for name, data in tensors.items():
            one = pick(name)
            back = one.decode(one.encode(data, specs[name]), specs[name])
            total += float(((back - data) ** 2).sum() / (data**2).sum())
        return total

    assert len(set(chosen.values())) > 1
    assert error(chosen.__getitem__) < error(lambda _: Affine(bits=4))


@pytest.mark.parametrize("data", [np.zeros((4, 5)), np.full((4, 5), np.nan), np.zeros((0,)), np.array(3.0)])
def test_what_has_no_power_has_no_error(data: Any) -> None:
    array = data.astype(np.float32)
    errors = AutoAffine().measure(array, dense_spec(array.shape, "float32"))
    assert np.isfinite(errors).all()
    assert max(errors) < 1e-9


def test_a_budget_goes_with_auto_alone() -> None:
    with pytest.raises(ConfigError, match="needs bits="):
        ts.Quantize(4, budget=3)
    for budget in (1.9, 8.1, float("nan"), True):
        with pytest.raises(ConfigError, match="budget"):
            ts.Quantize("auto", budget=budget)
    assert ts.parse("quantize:bits=auto,budget=3.5") == ts.Quantize("auto", budget=3.5)
    assert ts.from_dict(ts.to_dict(ts.Quantize("auto"))) == ts.Quantize("auto")


def test_it_chains() -> None:
    session = new_session(ts.Quantize("auto", budget=3) | ts.Compress(min_ratio=1))
    losses = trained(session, 4, network())
    plain = trained(new_session(ts.Keep()), 4, network())
    assert losses == pytest.approx(plain, rel=0.2)
    assert session.calibration.chosen
