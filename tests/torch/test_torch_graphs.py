"""Whole graphs have the same gradients, bit for bit, when all that can be stashed goes through the host."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
from tensorstash.host import native


def block(width=16, heads=2):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True)


def gradients(model, x, around=nullcontext, inside=None):
    """Gradients of every parameter and of x; ``around`` is in force for the forward."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    torch.manual_seed(1)
    with around():
        loss = (inside or model)(x * 1).float().square().sum()
    loss.backward()
    return [x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


def saved_on_cpu(model):
    def run(x):
        with save_on_cpu():
            return model(x)

    return run


WAYS = {
    "reentrant checkpoint": lambda model: partial(checkpoint, model, use_reentrant=True),
    "checkpoint": lambda model: partial(checkpoint, model, use_reentrant=False),
    "save_on_cpu": saved_on_cpu,
    "itself": lambda model: model,
}


@pytest.mark.parametrize("is_autocast", [False, True])
@pytest.mark.parametrize("position", ["around", "inside"])
@pytest.mark.parametrize("way", WAYS)
def test_hooks_around_and_inside_of_what_autograd_itself_does(pair, same_bits, way, position, is_autocast):
    model, x = block(), torch.randn(2, 5, 16)

    def hooked(x):
        with pair.hooks():
            return model(x)

    inside = WAYS[way](hooked if position == "inside" else model)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        plain = gradients(model, x)
        assert same_bits(plain, gradients(model, x, pair.hooks if position == "around" else nullcontext, inside))
    if way == "save_on_cpu" and position == "around":
        assert sum(pair.copied.values()) <= 2  # it has taken over
    else:
        assert pair.copied


class Watched(torch.autograd.Function):
    """Saves its input, and is nothing that the compiler can compile: it calls it as it is."""

    @staticmethod
    def forward(ctx, x):
        print(end="")
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
# The compiler makes an object of the function's class, and PyTorch warns of that.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("compiled_hooks", [True, False], ids=["compiled hooks", "hooks of Python"])
def test_hooks_that_run_in_the_middle_of_a_compiled_function_are_not_compiled(compiled_hooks, same_bits, monkeypatch):
    if not compiled_hooks:
        monkeypatch.setattr(native, "functions", None)

    def function(x):
        return checkpoint(torch.tanh, Watched.apply(x.sin()), use_reentrant=True)

    from torch._dynamo.utils import counters  # which takes a second to import

    def run(function, around):
        counters.clear()
        x = torch.linspace(-1, 1, 2000, requires_grad=True)
        for _ in range(2):
            with around:
                out = function(x)
            out.sum().backward()
        return [x.grad], counters["frames"]["total"]

    torch.compiler.reset()
    plain, frames = run(torch.compile(function, backend="eager"), nullcontext())
    torch.compiler.reset()
    stash = ts.stash("compress:min_ratio=1", framework="torch", min_bytes=0)
    hooked, hooked_frames = run(torch.compile(function, backend="eager"), stash)
    assert same_bits(plain, hooked)
    assert hooked_frames == frames
    assert stash.stats().stashed


def test_rrelu_in_training_saves_its_noise_before_it_is_there(backend):
    """pytorch#193671, which no hook can repair. Where it fails, PyTorch has, and the limitation in the docs can go."""
    noises = []

    def pack(tensor):
        if tensor.shape == (7,) and backend.keep_reason(tensor) is None:
            noises.append((tensor.detach(), tensor.detach().clone()))
        return tensor.detach()

    with backend.hooks(pack, lambda packed: packed):
        nn.functional.rrelu(torch.full((7,), -1.0, requires_grad=True), training=True)
    ((now, at_save),) = noises
    assert backend.version(now) == 0
    assert not torch.equal(now, at_save)
