"""The reader of a saved tensor is found while the graph is recorded, and nothing of the graph is held."""

import gc
import weakref

import pytest
import torch
from architectures import ARCHITECTURES
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tensorstash.backends.torch import readers as torch_readers
from tensorstash.backends.torch.readers import Readers


class Saved:
    """A handle."""

    def __init__(self, tensor):
        self.nbytes = tensor.nbytes
        self.tensor = tensor.detach()
        self.reader = None


class Recording:
    """A pair of hooks that asks for readers at every save, as an engine does."""

    def __init__(self):
        self.handles = []
        self.readers = None

    def __enter__(self):
        self.readers = Readers(lambda handle: isinstance(handle, Saved))
        self.hooks = saved_tensors_hooks(self.pack, lambda saved: saved.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    def pack(self, tensor):
        self.note(self.readers.visit(tensor))
        saved = Saved(tensor)
        self.handles.append(saved)
        return saved

    def note(self, found):
        for handle, reader in found:
            assert handle.reader in (None, reader)
            handle.reader = reader

    def finish(self, *outputs):
        for output in outputs:
            self.note(self.readers.visit(output))

    def names(self):
        return [handle.reader for handle in self.handles]


@pytest.fixture(autouse=True)
def names_instead_of_demands(monkeypatch):
    monkeypatch.setattr(torch_readers, "demand", str)


@pytest.fixture
def x():
    return torch.rand(4, 4, requires_grad=True)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, None, y)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None


def every_place(x):
    y = x * 2
    return (y * y).sum() + y.amax() + (y / y).sum()


def in_place_on_a_view(x):
    y = x * 1
    y[:2].exp_()
    return y


NAMES = {
    "a later save shows who has saved before": (
        lambda x: x.log().sigmoid().exp(),
        ["LogBackward0.self", "SigmoidBackward0.result", "ExpBackward0.result"],
    ),
    "an operation that saves its own result is looked at again when it is complete": (
        lambda x: (x * 2).tanh().exp(),
        ["TanhBackward0.result", "ExpBackward0.result"],
    ),
    "every place in which one tensor is saved has its own reader": (
        every_place,
        [
            *("MulBackward0.other", "MulBackward0.self", "AmaxBackward0.self", "AmaxBackward0.result"),
            *("DivBackward0.other", "DivBackward0.self"),
        ],
    ),
    "a setting that changes the need is part of the name": (
        lambda x: x.pow(2) + x.pow(0.5) + x.pow(-1) + torch.linalg.vector_norm(x, torch.inf),
        [
            *("PowBackward0.self", "PowBackward0(exponent<1).self", "PowBackward0(exponent<1).self"),
            *("LinalgVectorNormBackward0(inf).self", "LinalgVectorNormBackward0(inf).result"),
        ],
    ),
    "functions written in Python are seen": (lambda x: Twice.apply(x * 1, x * 3), ["TwiceBackward.tensors"] * 2),
    "in-place operations on views stay unknown": (in_place_on_a_view, [None]),
}


@pytest.mark.parametrize(("program", "names"), NAMES.values(), ids=NAMES)
def test_the_output_shows_the_readers(x, program, names):
    with Recording() as recording:
        out = program(x)
    assert None in recording.names()  # the last operation is not reachable yet
    recording.finish(out)
    assert sorted(recording.names(), key=str) == sorted(names, key=str)


@pytest.mark.parametrize("dropped", ["graph", "output"])
def test_nothing_of_the_graph_is_held(x, dropped):
    gc.disable()
    try:
        with Recording() as recording:
            out = x.exp().sin().exp()
            recording.finish(out)
            alive = [weakref.ref(handle) for handle in recording.handles]
            recording.handles.clear()
            if dropped == "graph":
                out.sum().backward()
            else:
                del out
            assert [ref() for ref in alive] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_others_pack_is_not_ours(x, reentrant):
    with Recording() as recording:
        out = checkpoint(lambda y: y.sin().exp().log(), x.exp(), use_reentrant=reentrant)
    recording.finish(out.cos())
    assert "ExpBackward0.result" in recording.names()
    assert not any(name and name.startswith(("Sin", "Log")) for name in recording.names())


def test_without_the_ability_nothing_is_found(x, monkeypatch):
    monkeypatch.setattr(torch_readers, "CAN_TELL", False)
    with Recording() as recording:
        out = x.log().exp()
    recording.finish(out)
    assert recording.names() == [None, None]


@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet"])
def test_all_that_a_model_saves_has_a_reader_once_its_output_is_known(name):
    model, inputs = ARCHITECTURES[name]()
    with Recording() as recording:
        out = model(**inputs).loss
    unknown = [handle for handle in recording.handles if handle.reader is None]
    assert sum(handle.nbytes for handle in unknown) < 0.5 * sum(handle.nbytes for handle in recording.handles)
    recording.finish(out)
    assert None not in recording.names()


def test_each_node_is_walked_once(x, monkeypatch):
    reads = []
    listed = torch_readers.saves_of
    monkeypatch.setattr(torch_readers, "saves_of", lambda node: reads.append(node._sequence_nr()) or listed(node))
    depth = 40
    with Recording() as recording:
        y = x
        for _ in range(depth):
            y = y.sin() + y
    recording.finish(y)
    assert set(recording.names()) == {"SinBackward0.self"}
    assert len(set(reads)) == 2 * depth + 1  # with the one that gathers the gradient of the input
    assert len(reads) <= 3 * depth  # the start of each walk is looked at once more
