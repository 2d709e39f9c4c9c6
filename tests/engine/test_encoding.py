"""Quick codecs run in the hook up to 8 MiB, all others on the writer; results are the same everywhere."""

import threading
from typing import Any

import pytest
import torch

import tensorstash as ts
from tensorstash.codecs.affine import Affine
from tensorstash.codecs.lossless import Lossless
from tensorstash.codecs.pack_bits import PackBits
from tensorstash.codecs.two_valued import TwoValued

MEBI = 2**20


def threads_of(monkeypatch: pytest.MonkeyPatch, codec: type) -> set[tuple[str, bool]]:
    """Return a set that collects (method, whether the main thread ran it) of a codec."""
    at_work: set[tuple[str, bool]] = set()
    for name in ("encode", "decode"):
        method = getattr(codec, name)

        def noting(*given: Any, method: Any = method, name: str = name) -> Any:
            at_work.add((name, threading.current_thread() is threading.main_thread()))
            return method(*given)

        monkeypatch.setattr(codec, name, noting)
    return at_work


def step(policy: Any, nbytes: int, limits: ts.Limits, *, kind: str = "float") -> bytes:
    """Train one layer that saves one tensor of a size; return the gradient."""
    torch.manual_seed(0)
    x = torch.randn(nbytes // (4 if kind == "float" else 1), requires_grad=True)
    with ts.stash(policy, framework="torch", min_bytes=1, limits=limits) as session:
        loss = (torch.nn.functional.gelu(x * 1.0).square() if kind == "float" else torch.where(x > 0, x, 0.0)).sum()
        session.drain()
    loss.backward()
    assert x.grad is not None
    return x.grad.numpy().tobytes()


@pytest.mark.parametrize(
    ("policy", "codec", "kind", "nbytes", "in_hook"),
    [
        (ts.Quantize(8), Affine, "float", 8 * MEBI, True),
        (ts.Quantize(8), Affine, "float", 8 * MEBI + 4, False),
        (ts.PackMasks(), TwoValued, "float", 8 * MEBI, True),
        (ts.PackMasks(), PackBits, "mask", MEBI, True),
        (ts.Compress(), Lossless, "float", MEBI, False),
        (ts.Quantize(8) | ts.DiskSpill(), Affine, "float", MEBI, False),
    ],
)
def test_quick_codecs_of_host_memory_run_in_the_hook_up_to_8_mib(
    policy: Any, codec: type, kind: str, nbytes: int, in_hook: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work = threads_of(monkeypatch, codec)
    step(policy, nbytes, ts.Limits(in_flight="64 MiB", ahead="64 MiB"), kind=kind)
    assert ("encode", in_hook) in at_work
    assert ("encode", not in_hook) not in at_work
    assert ("decode", False) not in at_work or not in_hook


def test_everything_runs_in_the_hook_where_nothing_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = threads_of(monkeypatch, Affine)
    step(ts.Quantize(8), 9 * MEBI, ts.Limits(in_flight=0, ahead=0))
    assert at_work == {("encode", True), ("decode", True)}


def test_gradients_do_not_depend_on_where_codecs_run() -> None:
    behind, in_hook = ts.Limits(in_flight="64 MiB"), ts.Limits(in_flight=0, ahead=0)
    assert step(ts.Quantize(8), 9 * MEBI, behind) == step(ts.Quantize(8), 9 * MEBI, in_hook)
