"""Lossy policies keep away from operations that compare with what they saved, or divide by it."""

from contextlib import nullcontext

import pytest
import torch
from reader_search import BOUND, LOSSY, disagreements, search, table
from torch import nn
from torch.nn.functional import gelu

import tensorstash as ts
from tensorstash.backends.readers import listed
from tensorstash.backends.torch import readers
from tensorstash.backends.torch.readers import demand
from tensorstash.errors import StashError
from tensorstash.policies import StoreIn
from tensorstash.policies.selectors import ModuleNames
from tensorstash.stores import Memory


def exact_first(x):
    return (y := x * 2).amax(-1, keepdim=True) + y * y


def exact_last(x):
    return (y := x * 2) * y + y.amax(-1, keepdim=True)


COMPARING = {  # some: the search below tries the others
    "two readers, exact first": exact_first,
    "two readers, exact last": exact_last,
    "two readers, exact first, known by later saves": lambda x: exact_first(x).relu().relu(),
    "two readers, exact last, known by later saves": lambda x: exact_last(x).relu().relu(),
    "amax": lambda x: x.amax(-1),
}

DECREASING = torch.logspace(0, -4, 8)[:, None]  # held, so that it is never encoded

DIVIDING = {
    "sqrt": lambda x: x.abs().sqrt(),
    "division": lambda x: torch.ones(8, 64) / x,
    "norm": lambda x: (x * DECREASING).T.norm(dim=1),
}

ORDINARY = {
    "product": lambda x: x * x,
    "linear": lambda x: x @ x.T,
    "gelu": torch.nn.functional.gelu,
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (64,)),
    "conv": lambda x: torch.nn.functional.conv1d(x[None], torch.ones(8, 8, 3)),
}


@pytest.fixture
def start():
    """Return groups with ties at both ends, and with numbers near zero, of either sign."""
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    x[:, ::4] *= 10 ** (-4 * torch.rand(8, 16))
    x[:, 5] = x[:, 17] = x[:, 40] = 3.3
    x[:, 6] = x[:, 18] = -3.3
    return x.requires_grad_()


def gradient(program, start, policy=None):
    """The gradient of a sum, where nobody but the graph holds what the program saves."""

    weights = []  # held, so that only what the program saves is encoded

    def forward():
        out = program(start * 1.1)
        weights.append(torch.linspace(0.5, 1.5, out.numel()).view_as(out))
        return (out * weights[-1]).sum()

    scope = nullcontext() if policy is None else ts.stash(policy, framework="torch", min_bytes=0)
    for _ in range(2):  # what the last operations save is known from the second step on
        with scope:
            loss = forward()
        (grad,) = torch.autograd.grad(loss, start)
    return grad


UNRELATED = {"quantize": ts.Quantize(8), "float16": ts.Cast("float16"), "float8_e5m2": ts.Cast("float8_e5m2")}
"""Policies whose error is not relative to each element: of small numbers nothing is left."""

EXACT = [
    pytest.param(program, policy, id=f"{name}, {how}")
    for programs, policies in ((COMPARING, LOSSY), (DIVIDING, UNRELATED))
    for name, program in programs.items()
    for how, policy in policies.items()
]


@pytest.mark.parametrize(("program", "policy"), EXACT)
def test_what_compares_gets_the_exact_tensor_and_what_divides_no_error_but_a_relative_one(program, policy, start):
    assert torch.equal(gradient(program, start, policy), gradient(program, start))


@pytest.mark.parametrize("program", DIVIDING.values(), ids=DIVIDING)
def test_what_divides_may_be_cast_to_a_format_with_all_exponents(program, start):
    plain, cast = gradient(program, start), gradient(program, start, ts.Cast("bfloat16"))
    assert cast.isfinite().all()
    assert (cast - plain).norm() < 0.01 * plain.norm()


@pytest.mark.parametrize("policy", LOSSY.values(), ids=LOSSY)
@pytest.mark.parametrize("program", ORDINARY.values(), ids=ORDINARY)
def test_all_others_are_lossy_within_the_bound(program, policy, start):
    def then(x):
        return (program(x) * (1 + x.mean())).sin()  # what follows shows who reads

    plain, lossy = gradient(then, start), gradient(then, start, policy)
    assert not torch.equal(plain, lossy)
    assert (lossy - plain).norm() < 2 * BOUND * plain.norm()


@pytest.mark.parametrize("policy", LOSSY.values(), ids=LOSSY)
def test_what_compares_gets_the_exact_tensor_when_the_user_lets_go_of_it_after_the_block(policy, start):
    def gradient(scope):
        with scope:
            held = start * 1.1
            loss = held.amax(-1).square().sum()
        del held
        return torch.autograd.grad(loss, start)[0]

    stash = ts.stash(policy, framework="torch", min_bytes=0)
    for _ in range(2):
        assert torch.equal(gradient(stash), gradient(nullcontext()))


class Peak(nn.Module):
    def forward(self, x):
        return (x * 1.1).amax(-1)


def test_what_is_read_exactly_still_goes_where_the_plan_of_its_own_module_says(start):
    (plain,) = torch.autograd.grad(Peak()(start).square().sum(), start)
    inner = ts.Rule(ModuleNames("0"), ts.Quantize(8) | StoreIn(Memory()))
    model = nn.Sequential(Peak())
    handle = ts.wrap(model, ts.Route((inner,)), min_bytes=0, limits=ts.Limits(in_flight=0))
    for _ in range(2):  # what the last operation saves is known from the second step on
        loss = model(start).square().sum()
        stats = handle.stats()
        assert stats.declined.tensors == 0
        assert "affine" not in stats.stages
        (grad,) = torch.autograd.grad(loss, start)
        assert torch.equal(grad, plain)
    assert stats.stored["memory"].nbytes == 2 * start.nbytes


class Comparing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.amax(-1, keepdim=True)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x == x.amax(-1, keepdim=True))


def hidden(x):
    y = x * 0.5
    y[:].exp_()  # its node shows nothing, as those of C++ extensions
    return y * y


UNKNOWN = {
    "a function": lambda x: Comparing.apply(x * 1.5),
    "a function before others": lambda x: Comparing.apply(y := x * 1.5) + y * y,
    "a function after others": lambda x: (y := x * 1.5) * y + Comparing.apply(y),
    "an operation that hides what it saves": hidden,
}


@pytest.mark.parametrize("policy", LOSSY.values(), ids=LOSSY)
@pytest.mark.parametrize("program", UNKNOWN.values(), ids=UNKNOWN)
def test_a_reader_that_is_not_listed_gets_the_exact_tensor(program, policy, start):
    def exactly(x):
        return x.clamp(-1e9, 1e9)

    step, plain = stepping(policy), stepping()
    for _ in range(3):  # what the last operations save is known from the second step on
        assert torch.equal(step(start, [program], exactly), plain(start, [program], exactly))


def test_a_search_over_the_operators_finds_the_readers_that_are_not_listed_and_no_others():
    sample = search(samples=1, step=10)  # a part of the whole search, which ``reader_search.py`` runs as a script
    print(table(sample))
    assert disagreements(sample, margin=2) == []
    worst = sample.worst()
    assert sum(map(len, sample.seen.values())) > 3000
    assert len(worst) > 150

    struck = {"AmaxBackward0.self", "LogBackward0.self", "PowBackward0(exponent<1).self", "DivBackward0.other"}
    struck.add("ReluBackward0.result")
    found = disagreements(sample, margin=2, wanted=lambda reader: "any" if reader in struck else demand(reader))
    assert {line.split(":")[0] for line in found} == struck

    ordinary = "AddmmBackward0.mat1 BmmBackward0.self ConvolutionBackward0.input GeluBackward0.self MmBackward0.self "
    ordinary += "MulBackward0.other NativeLayerNormBackward0.input SiluBackward0.self SoftmaxBackward0.result"
    assert max(max(worst[reader].values()) for reader in ordinary.split()) < BOUND


LONG, amax = 9, COMPARING["amax"]
"""Saved tensors from which a program is known again."""


def stepping(policy=None):
    """Return what runs a chain of operations under a policy, then others that end it, and gives the gradient.

    Nothing that is saved later shows who reads what the last of them save; what they return is too small to be stashed.
    """
    scope = nullcontext() if policy is None else ts.stash(policy, framework="torch", min_bytes=2000)

    def step(start, ends, chain=gelu):
        with scope:
            x = start * 1.1
            for _ in range(LONG):
                x = chain(x)
            x = x * 1.5
            found = [end(x) for end in ends]
            del x
        return torch.autograd.grad([each.sum() for each in found], start)[0]

    return step


def test_a_tensor_that_is_suddenly_read_exactly_is_an_error_and_exact_from_then_on(start):
    step, plain = stepping(ts.Quantize(8)), stepping()
    for _ in range(3):
        assert not torch.equal(step(start, [gelu]), plain(start, [gelu]))
    with pytest.raises(StashError, match="backward needs the tensor exactly, and did not in the steps before"):
        step(start, [amax])
    step(start, [amax])


def test_a_second_derivative_compares_with_the_exact_tensor_too(start):
    def second(policy):
        with ts.stash(policy, framework="torch", min_bytes=0):
            (first,) = torch.autograd.grad((start * 1.1).amax(-1).square().sum(), start, create_graph=True)
        return torch.autograd.grad(first.square().sum(), start)[0]

    plain = second(ts.Keep())
    assert (second(ts.Quantize(8)) - plain).norm() < 2 * BOUND * plain.norm()


def test_every_listed_operation_exists():
    def exists(reader):
        operation, place = reader.split(".")
        kind = getattr(torch._C._functions, operation.partition("(")[0], None)
        return hasattr(kind, f"_raw_saved_{place}")

    measured = listed(readers.__file__)
    assert len(measured) > 450
    assert set(measured.values()) == {"any", "relative", "exact"}
    assert [reader for reader in measured if not exists(reader)] == []


def test_what_is_not_read_yet_waits_for_its_reader_while_others_are_saved():
    first, second = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    limits = ts.Limits(in_flight=0, ahead=0)
    with ts.stash(ts.Quantize(8), framework="torch", min_bytes=0, limits=limits) as session:
        loss = (gelu(first * 1.0) + gelu(second * 1.0)).tanh().sum()
    assert session.stats().stages["affine"].tensors == 2
    loss.backward()


@pytest.mark.parametrize("ends", [[amax, gelu], [gelu, amax]], ids=["exact first", "exact last"])
def test_what_is_learned_of_two_readers_is_what_the_stricter_needs(ends, start):
    step, plain = stepping(ts.Quantize(8)), stepping()
    for _ in range(3):  # a chain that is read exactly, too
        assert torch.equal(step(start, ends, torch.relu), plain(start, ends, torch.relu))


def test_what_is_learned_of_a_program_says_nothing_of_one_that_began_otherwise(start):
    step = stepping(ts.Quantize(8))
    for _ in range(2):
        step(start, [gelu])
    step(start, [amax], nn.functional.silu)
