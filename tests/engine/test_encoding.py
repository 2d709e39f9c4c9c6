"""Codecs give the same whether they run in the hook or behind the computation."""

import pytest

import tensorstash as ts
from tensorstash.engine.limits import Limits
from tensorstash.engine.payloads.capture import Sender
from tensorstash.engine.payloads.encoding import Encoding
from tensorstash.errors import ConfigError
from tensorstash.kernels.team import cores

torch = pytest.importorskip("torch")


def gradients(encode: str) -> list[bytes]:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 8))
    stash = ts.stash(ts.Quantize(8), framework="torch", min_bytes=0, limits=ts.Limits(encode=encode))
    with stash:
        loss = layers(torch.randn(700, 64)).square().mean()
    loss.backward()
    return [parameter.grad.numpy().tobytes() for parameter in layers.parameters()]


def test_gradients_do_not_depend_on_where_codecs_run() -> None:
    now = gradients("now")
    assert now == gradients("behind") == gradients("auto")


class OnAllCores:
    may_be_now = True


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, cores() == 1), (cores(), True), (max(1, cores() - 1), cores() == 1)]
)
def test_the_hook_encodes_where_the_framework_computes_on_every_core(threads: int, expected: bool) -> None:
    from tensorstash.backends.torch.backend import TorchBackend

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        limits, backend = Limits(in_flight=10), TorchBackend()
        encoding = Encoding(backend, limits)
        encoding.look()
        sender = Sender(limits, encoding, backend)
        assert sender.is_now(OnAllCores(), 3) == (expected and (threads == 1 or encoding.team.helps))
        lease = sender.in_flight.try_acquire(8)
        assert sender.is_now(OnAllCores(), 11), "too large to wait"
        assert sender.is_now(OnAllCores(), 3) == (expected or encoding.team.helps)
        assert lease is not None
    finally:
        torch.set_num_threads(before)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"limits\.encode: got 'later', expected one of 'auto', 'now', 'behind'"):
        ts.Limits(encode="later")  # type: ignore[arg-type]
