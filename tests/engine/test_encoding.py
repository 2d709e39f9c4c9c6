"""Codecs give the same whether they run in the hook or behind the computation."""

import threading
from typing import Any

import pytest

import tensorstash as ts
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import TwoValued
from tensorstash.engine.payloads.capture import Sender
from tensorstash.engine.payloads.encoding import Encoding
from tensorstash.engine.payloads.route import PayloadRoute
from tensorstash.errors import ConfigError
from tensorstash.kernels.team import cores
from tensorstash.policies.limits import Limits

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
    is_short = False
    is_now = PayloadRoute.is_now

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding


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
        assert sender.is_now(OnAllCores(encoding), 3) == (expected and (threads == 1 or encoding.team.helps))
        lease = sender.in_flight.try_acquire(8)
        assert sender.is_now(OnAllCores(encoding), 11), "too large to wait"
        assert sender.is_now(OnAllCores(encoding), 3) == (expected or encoding.team.helps)
        assert lease is not None
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("encode", ["auto", "now", "behind"])
def test_masks_are_packed_and_unpacked_in_the_hook_unless_told_otherwise(
    encode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: set[tuple[str, bool]] = set()
    for name in ("encode", "decode"):
        method = getattr(TwoValued, name)

        def noting(*given: Any, method: Any = method, name: str = name) -> Any:
            at_work.add((name, threading.current_thread() is threading.main_thread()))
            return method(*given)

        monkeypatch.setattr(TwoValued, name, noting)
    x = torch.randn(64, 512, requires_grad=True)
    stash = ts.stash(ts.Recompute(), framework="torch", min_bytes=1, limits=ts.Limits(encode=encode))
    for _ in range(3):
        at_work.clear()
        with stash as session:
            y = x
            for _ in range(3):
                y = torch.nn.functional.dropout(y, 0.5)
            loss = y.square().sum()
            session.drain()
        loss.backward()
    assert ("encode", encode != "behind") in at_work
    assert ("encode", encode == "behind") not in at_work
    assert ("decode", False) not in at_work or encode == "behind"


def test_long_or_slow_work_is_not_done_in_the_hook_everywhere() -> None:
    from tensorstash.backends.torch.backend import TorchBackend

    encoding = Encoding(TorchBackend(), Limits())
    few, many = 8 * 2**20, 8 * 2**20 + 1
    assert encoding.is_short((TwoValued(),), few)
    assert encoding.is_short((PackBits(),), few)
    assert not encoding.is_short((TwoValued(),), many)
    assert not encoding.is_short((Affine(bits=8),), 1)
    assert not encoding.is_short((TwoValued(), Affine(bits=8)), 1)
    assert not Encoding(TorchBackend(), Limits(encode="behind")).is_short((TwoValued(),), 1)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"limits\.encode: got 'later', expected one of 'auto', 'now', 'behind'"):
        ts.Limits(encode="later")  # type: ignore[arg-type]
