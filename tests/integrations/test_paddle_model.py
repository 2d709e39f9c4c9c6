"""``paddle.Model``: the policy before, after and by callback; the same parameters, and what is logged."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "3")

import numpy as np
import paddle
import pytest

import tensorstash as ts
from tensorstash.integrations.paddle import StashCallback

# Of paddle.Model itself, about its own batches.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct")

STEPS = 3
OPTIONS: dict[str, Any] = {"limits": ts.Limits(in_flight=0, ahead=0), "min_bytes": 0}


def rows(count: int) -> Any:
    """Return inputs and targets that are the same each time."""
    values = np.random.default_rng(0).normal(size=(2, count, 16)).astype(np.float32)
    return paddle.io.TensorDataset([paddle.to_tensor(each) for each in values])


def network() -> Any:
    paddle.seed(0)
    return paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.GELU(), paddle.nn.Linear(32, 16))


class Seen(paddle.callbacks.Callback):  # type: ignore[misc]
    """Keeps what the callbacks of users are given to log."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, Any]] = []
        self.metrics: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.metrics = self.params["metrics"]

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


def fit(where: str, accumulation: int = 1, callbacks: tuple[Any, ...] = ()) -> tuple[Any, Any]:
    net = network()
    handle = ts.wrap(net, "compress", **OPTIONS) if where == "before" else None
    model = paddle.Model(net)
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=net.parameters())
    model.prepare(optimizer, paddle.nn.MSELoss())
    callback = StashCallback("compress", **OPTIONS) if where == "callback" else None
    if where == "after":
        handle = ts.wrap(net, "compress", **OPTIONS)
    given = [callback, *callbacks] if callback else list(callbacks)
    data, options = rows(4 * STEPS * accumulation), {"batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(data, callbacks=given, accumulate_grad_batches=accumulation, epochs=1, **options)
    return [one.numpy() for one in net.parameters()], handle or callback


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_parameters_are_the_same_wherever_the_policy_is_put(accumulation: int) -> None:
    expected, _ = fit("nowhere", accumulation)
    for where in ("before", "after", "callback"):
        found, under = fit(where, accumulation)
        assert all(map(np.array_equal, expected, found)), where
        assert under.stats().stashed.tensors > 0, where


def test_what_a_step_did_is_logged_by_the_callbacks_behind_it() -> None:
    seen = Seen()
    fit("callback", callbacks=(seen,))
    assert len(seen.logs) == STEPS
    assert all(logs["tensorstash/stashed_MiB"] > 0 for logs in seen.logs)
    assert {"loss", "tensorstash/stashed_MiB", "tensorstash/saved_MiB"} <= set(seen.metrics)


def test_the_network_is_as_it_was_when_training_has_ended() -> None:
    net = network()
    model = paddle.Model(net)
    model.prepare(paddle.optimizer.SGD(1e-2, parameters=net.parameters()), paddle.nn.MSELoss())
    model.fit(rows(4), batch_size=4, verbose=0, callbacks=[callback := StashCallback("compress", **OPTIONS)])
    assert ts.wrapped(net) == ()
    seen = callback.stats().seen
    model.fit(rows(4), batch_size=4, verbose=0)
    assert callback.stats().seen == seen


def test_a_wrapped_model_can_be_saved_for_inference(tmp_path: Path) -> None:
    net = network()
    ts.wrap(net, "compress", **OPTIONS)
    model = paddle.Model(net, [paddle.static.InputSpec([None, 16], "float32", "x")])
    net(paddle.ones([1, 16]))
    model.save(str(tmp_path / "net"), training=False)
    assert (tmp_path / "net.pdiparams").exists()
