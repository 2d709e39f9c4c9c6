"""Whole graphs have the same gradients, bit for bit, when all that can be stashed goes through the host."""

import threading
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch program has for it)
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd.graph import save_on_cpu
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
from tensorstash.host import native


def block(width=16, heads=2):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True)


def gradients(model, x, around=nullcontext, inside=None, **backward):
    """Gradients of every parameter and of x; ``around`` is in force for the forward."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    torch.manual_seed(1)
    with around():
        loss = (inside or model)(x * 1).square().sum()
    loss.backward(**backward)
    return [x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


def test_a_transformer_block(pair, same_bits):
    model, x = block(), torch.randn(2, 5, 16)
    plain = gradients(model, x)
    assert same_bits(plain, gradients(model, x))
    assert same_bits(plain, gradients(model, x, pair.hooks))
    assert pair.copied
    assert pair.kept.keys() <= {"parameter", "view of a parameter"}


LAYOUT_SENSITIVE = {
    "matmul of a transposed": lambda x: x.t() @ x,
    "matmul of gaps": lambda x: x[:, ::2] @ x[:, ::2].t(),
    "gelu of a transposed": lambda x: F.gelu(x.t() * 1.5),
    "gaps of split": lambda x: torch.cat([part.sin() @ part.cos().t() for part in x.split(3, dim=1)]),
    "expanded": lambda x: (x[:, :1].expand(-1, 12) * x).exp(),
    "windows": lambda x: x.reshape(-1).unfold(0, 5, 1).square().sum(-1).sqrt(),
    "channels last": lambda x: F.conv2d(
        x.view(1, 1, 12, 12).expand(2, 4, 12, 12).contiguous(memory_format=torch.channels_last),
        torch.linspace(-1, 1, 4 * 4 * 9).view(4, 4, 3, 3).contiguous(memory_format=torch.channels_last),
    ),
    "group norm of channels last": lambda x: F.group_norm(
        x.view(1, 4, 6, 6).contiguous(memory_format=torch.channels_last), 2
    ),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.t() + 12 * torch.eye(12)),
    "qr": lambda x: torch.linalg.qr(x)[1],
    "inverse": lambda x: torch.linalg.inv(x + 12 * torch.eye(12)),
    "lu": lambda x: torch.linalg.lu(x)[2],
    "householder": lambda x: torch.linalg.householder_product(x, torch.linspace(0.1, 1, 12)),
    "complex": lambda x: torch.view_as_real(torch.fft.fft(x).conj() * torch.fft.ifft(x)),
    "negated": lambda x: (torch.fft.fft(x).conj().imag * x).sin(),
    "softmax": lambda x: F.log_softmax(x, -1).exp() * x,
    "attention": lambda x: F.scaled_dot_product_attention(*x.view(3, 1, 2, 12, 2)),
    "max pool": lambda x: F.max_pool2d(x.view(1, 1, 12, 12), 3),
    "embedding": lambda x: F.embedding(torch.tensor([3, 1, 3]), x * 1),
    "no dimensions": lambda x: x.sum().exp().sqrt() * x.mean().sin(),
    "empty": lambda x: x[:0].exp().sum() + x.sin(),
}


@pytest.mark.parametrize("order", [1, 2], ids=["first order", "double backward"])
@pytest.mark.parametrize("function", LAYOUT_SENSITIVE.values(), ids=LAYOUT_SENSITIVE.keys())
def test_operations_whose_kernels_depend_on_layout(pair, same_bits, function, order):
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(12, 12, generator=generator)

    def run(around):
        x = start.clone().requires_grad_()
        with around(), sdpa_kernel(SDPBackend.MATH if order == 2 else SDPBackend.FLASH_ATTENTION):
            y = function(x * 1)
            seed = torch.linspace(0.5, 1.5, y.numel()).view(y.shape).requires_grad_()
            first = torch.autograd.grad(y, x, seed, create_graph=order == 2)
        if order == 1:
            return first
        return [*first, *torch.autograd.grad(first[0].square().sum(), (x, seed), allow_unused=True)]

    plain = run(nullcontext)
    assert same_bits(plain, run(nullcontext))
    assert same_bits(plain, run(pair.hooks))
    assert pair.unpacked
    assert pair.copied or function is LAYOUT_SENSITIVE["embedding"]


def test_retained_graphs_unpack_again(pair, same_bits):
    x = torch.randn(4, 4, requires_grad=True)
    with pair.hooks():
        y = (x * 1).exp().tanh().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    once = pair.unpacked
    assert same_bits(first, torch.autograd.grad(y, x, retain_graph=True))
    assert same_bits(first, torch.autograd.grad(y, x))
    assert pair.unpacked == 3 * once > 0


def test_unpacked_tensors_may_be_written_to(pair):
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return x.mul_(2).mul_(grad)

    x = torch.randn(4, requires_grad=True)
    with pair.hooks():
        middle = x * 1
        y = Careless.apply(middle).sum()
    for _ in range(2):
        (grad,) = torch.autograd.grad(y, x, retain_graph=True)
        assert torch.equal(grad, 2 * x)


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
@pytest.mark.parametrize("position", ["around", "inside"])
def test_checkpoint(pair, same_bits, use_reentrant, position):
    model, x = block(), torch.randn(2, 5, 16)
    plain = gradients(model, x)

    def hooked(x):
        with pair.hooks():
            return model(x)

    body = hooked if position == "inside" else model

    def inside(x):
        return checkpoint(body, x, use_reentrant=use_reentrant)

    around = pair.hooks if position == "around" else nullcontext
    assert same_bits(plain, gradients(model, x, around, inside))
    assert pair.copied


def test_save_on_cpu_inside_takes_over_and_gives_back(pair, same_bits):
    model, x = block(), torch.randn(2, 5, 16)
    plain = gradients(model, x)

    def inside(x):
        with save_on_cpu():
            return model(x)

    assert same_bits(plain, gradients(model, x, pair.hooks, inside))
    assert sum(pair.copied.values()) <= 2


def test_backward_under_autocast_computes_as_without_hooks(pair, same_bits):
    model, x = block(), torch.randn(2, 5, 16)

    def run(around):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with around():
                loss = model(leaf * 1).float().square().sum()
            loss.backward()
        return [leaf.grad, *(parameter.grad.clone() for parameter in model.parameters())]

    plain = run(nullcontext)
    assert same_bits(plain, run(pair.hooks))
    assert pair.copied


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, flag):
        y = x @ weight.t()
        mask = y > 0
        ctx.save_for_backward(x, weight, None, mask)
        ctx.mark_non_differentiable(mask)
        return y * mask, mask

    @staticmethod
    def backward(ctx, grad, _):
        x, weight, nothing, mask = ctx.saved_tensors
        assert nothing is None
        grad = grad * mask
        return grad @ weight, grad.t() @ x, None


def test_custom_function_with_none_and_masks(pair, same_bits):
    start, weight = torch.randn(3, 4), nn.Parameter(torch.randn(5, 4))

    def run(around):
        x = start.clone().requires_grad_()
        with around():
            y, _ = Fused.apply(x * 1, weight, True)
        return torch.autograd.grad(y.sum(), (x, weight))

    plain = run(nullcontext)
    assert same_bits(plain, run(pair.hooks))
    assert pair.copied[(3, 5)] == 1
    assert pair.kept["parameter"] == 1


def test_graphs_are_built_and_used_on_several_threads(pair, same_bits):
    models = [block() for _ in range(3)]
    inputs = [torch.randn(2, 5, 16) for _ in models]

    def build(model, x, around):
        leaf = x.clone().requires_grad_()
        with around():
            return leaf, model.eval()(leaf * 1).square().sum()

    def grads(model, leaf, loss):
        return torch.autograd.grad(loss, (leaf, *model.parameters()))

    def on_threads(work):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(models))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run(around):
        graphs = [None] * len(models)
        results = [None] * len(models)

        def forward(i):
            graphs[i] = build(models[i], inputs[i], around)

        def backward(i):
            results[i] = grads(models[i], *graphs[i])

        on_threads(forward)
        on_threads(backward)
        return results

    # Without hooks on threads too: a new thread may compute with another number of threads, and so round differently.
    assert all(map(same_bits, run(nullcontext), run(pair.hooks)))


# The compiler looks at .grad of its inputs, which are no leaves here, and PyTorch warns of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", ["eager", "aot_eager"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["context around", "forward wrapped"])
def test_compiled_models(backend, pair, same_bits, name, wrapped):
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(3, 8)
    compiled = torch.compile(model, backend=name)
    plain = gradients(model, x, inside=compiled)
    if wrapped:
        undo = backend.wrap_forward(compiled, pair.hooks)
        hooked = gradients(model, x, inside=compiled)
        undo()
    else:
        hooked = gradients(model, x, pair.hooks, compiled)
    assert same_bits(plain, hooked)
    assert pair.copied
    assert {"parameter", "view of a parameter"} & set(pair.kept)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_wrapped_model_that_is_compiled_afterwards(backend, pair, same_bits):
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(3, 8)
    plain = gradients(model, x)
    backend.wrap_forward(model, pair.hooks)
    assert same_bits(plain, gradients(model, x, inside=torch.compile(model, backend="eager")))
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

    def run(function, around):
        counters.clear()
        x = torch.linspace(-1, 1, 2000, requires_grad=True)
        for _ in range(2):
            with around:
                out = function(x)
            out.sum().backward()
        return [x.grad], counters["frames"]["total"]

    torch._dynamo.reset()
    plain, frames = run(torch.compile(function, backend="eager"), nullcontext())
    torch._dynamo.reset()
    stash = ts.stash("compress:min_ratio=1", framework="torch", min_bytes=0)
    hooked, hooked_frames = run(torch.compile(function, backend="eager"), stash)
    assert same_bits(plain, hooked)
    assert hooked_frames == frames
    assert stash.stats().stashed


def test_rrelu_in_training_saves_its_noise_before_it_is_there(backend):
    """pytorch#193671: no hook can repair it. When this fails, PyTorch has, and the note in the backend can go."""
    noises = []

    def pack(tensor):
        if tensor.shape == (7,) and backend.keep_reason(tensor) is None:
            noises.append((tensor.detach(), tensor.detach().clone()))
        return tensor.detach()

    x = torch.full((7,), -1.0, requires_grad=True)
    with backend.hooks(pack, lambda packed: packed):
        F.rrelu(x, training=True)
    ((now, at_save),) = noises
    assert now._version == 0
    assert not torch.equal(now, at_save)
