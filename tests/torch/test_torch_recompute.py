"""Tensors that are made again: the same bits or none, and an error wherever that cannot be known."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import tensorstash as ts
from tensorstash.backends.torch.recipes.rules import Rule, rules
from tensorstash.engine.stats import Tally
from tensorstash.errors import SavedTensorModifiedError, StashError
from tests.torch.conftest import are_same


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def stash(policy=None, *, min_bytes=1, **options):
    return ts.stash(policy or ts.Recompute(), framework="torch", min_bytes=min_bytes, **options)


REREAD = {
    "real as complex": (torch.float32, lambda made: torch.view_as_complex(made.unflatten(-1, (-1, 2))).square().real),
    "conjugated": (torch.float32, lambda made: torch.view_as_complex(made.unflatten(-1, (-1, 2))).conj().pow(3).real),
    "complex as real": (torch.complex64, lambda made: torch.view_as_real(made).square()),
    "negated": (torch.complex64, lambda made: made.conj().imag.square()),
}


@pytest.mark.parametrize(("dtype", "reread"), REREAD.values(), ids=REREAD)
def test_what_is_read_in_another_way_is_no_layout_of_what_is_made_again(dtype, reread):
    def gradient(scope):
        leaf = torch.arange(1.0, 25.0).reshape(4, 6).to(dtype).requires_grad_()
        with scope:
            made = leaf.exp() * 1.5
            loss = (made * made).sum().real + reread(made).sum()
        loss.backward()
        return leaf.grad

    around = stash()
    assert torch.equal(gradient(around), gradient(nullcontext()))
    assert around.stats().recomputed


def weight(*shape):
    return nn.Parameter(torch.rand(*shape) + 0.5)


def planted(monkeypatch, node, run):
    """Put another way to run an operation into the table."""
    table = rules()
    table[node] = Rule(table[node].name, node, table[node].inputs, run)
    monkeypatch.setattr("tensorstash.backends.torch.recipes.producers.built_in", lambda: table)


def gelu_program(around):
    torch.manual_seed(2)
    layer = nn.Linear(8, 8)
    with around:
        loss = layer(F.gelu(layer(torch.ones(4, 8)), approximate="tanh")).sum()
    loss.backward()
    return [layer.weight.grad]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (lambda x: F.gelu(x), "gelu: came out different"),
        (lambda x: F.gelu(x, approximate="tanh").double(), "gelu: raised ValueError"),
        (lambda x: 1 / 0, "gelu: raised ZeroDivisionError"),
    ],
    ids=["wrong attribute", "wrong dtype", "raises"],
)
def test_a_rule_with_a_fault_is_not_trusted(monkeypatch, run, why):
    expected = gelu_program(nullcontext())
    planted(monkeypatch, "GeluBackward0", run)
    around = stash()
    for _ in range(2):
        assert are_same(gelu_program(around), expected)
    stats = around.stats()
    assert not stats.recomputed
    assert [each for each in stats.refused if each.startswith(why)]


def test_a_rule_that_goes_wrong_later_is_an_error_with_its_name(monkeypatch):
    calls = []

    def run(x):
        calls.append(1)
        return F.gelu(x, approximate="tanh") if len(calls) == 1 else 1 / 0

    planted(monkeypatch, "GeluBackward0", run)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU("tanh"), nn.Linear(8, 8))
    wrapped = ts.wrap(model, ts.Recompute(), min_bytes=1)
    loss = model(torch.ones(4, 8)).sum()
    with pytest.raises(StashError, match=r"Recompute, rule gelu, tensor float32\(4, 8\).*ZeroDivisionError"):
        loss.backward()
    wrapped.remove()


def after(between, *, buffer=None, min_bytes=1, policy=None, before=nullcontext):
    """Return gradients of a product with a buffer, where something comes between forward and backward."""
    torch.manual_seed(0)
    first, last = nn.Linear(64, 250), nn.Linear(250, 16)
    given = torch.randn(300, 64)
    with before(), ts.stash(policy, framework="torch", min_bytes=min_bytes) if policy else nullcontext():
        hidden = F.silu(F.gelu(first(given)))
        hidden = hidden if buffer is None else hidden * buffer
        loss = last(hidden).square().mean()
        del hidden
    between()
    loss.backward()
    return [weight.grad for weight in (*first.parameters(), *last.parameters())]


@pytest.mark.parametrize("threads", [(1, 2), (2, 1), (3, 2)])
def test_the_number_of_threads_may_change_before_backward(threads):
    before = torch.get_num_threads()
    found = []
    try:
        for policy in (None, ts.Recompute()):
            torch.set_num_threads(threads[0])
            found.append(after(lambda: torch.set_num_threads(threads[1]), policy=policy))
            assert torch.get_num_threads() == threads[1]
    finally:
        torch.set_num_threads(before)
    assert are_same(*found)


def test_a_library_of_kernels_may_be_switched_off_for_the_forward_pass_alone(monkeypatch):
    @contextmanager
    def off():  # PyTorch's own test suite, where it was imported, freezes the public flag
        switch = torch._C._set_mkldnn_enabled
        switch(False)
        yield
        switch(True)

    expected = after(lambda: None, before=off)
    monkeypatch.setattr(torch, "set_num_threads", None)  # with any number it may change bits
    assert are_same(after(lambda: None, before=off, policy=ts.Recompute()), expected)
    assert torch.backends.mkldnn.enabled


def test_small_memory_of_the_user_is_copied_so_that_it_may_be_rewritten_unseen():
    buffer = torch.ones(300, 1)
    expected = after(lambda: buffer.data[151].fill_(3.0), buffer=buffer)
    buffer.fill_(1)
    found = after(lambda: buffer.data[151].fill_(3.0), buffer=buffer, policy=ts.Recompute(), min_bytes=2**14)
    assert are_same(found, expected)


def test_masks_take_a_bit_per_element():
    leaf = torch.randn(64, 64, requires_grad=True)
    with stash() as session:
        loss = F.dropout(leaf.sin(), 0.3).sum()
    session.drain()
    loss.backward()
    assert session.stats().stages["two_valued"].bytes_out < leaf.nbytes / 16


def test_only_the_rules_that_are_asked_for_are_used():
    with stash(ts.Recompute(ops="silu")) as session:
        inputs, other = torch.ones(4, 8, requires_grad=True).sin(), torch.ones(8, 8, requires_grad=True)
        loss = (F.gelu(F.silu(inputs) @ other) @ other).sum()
    loss.backward()
    assert list(session.stats().recomputed) == ["silu"]


def test_no_chain_is_longer_than_depth():
    def run(depth):
        leaf = torch.randn(4, 4, requires_grad=True)
        with stash(ts.Recompute(depth=depth)) as session:
            hidden = leaf.sin()
            for _ in range(6):
                hidden = F.silu(hidden)
            loss = (hidden @ leaf).sum()
        loss.backward()
        return session.stats()

    assert sum(done.tensors for done in run(8).recomputed.values()) == 6
    shallow = run(1)
    assert sum(done.tensors for done in shallow.recomputed.values()) == 3
    assert "silu: deeper than depth" in shallow.refused


def test_a_version_that_does_not_show_its_graph_is_named_with_the_cure(monkeypatch):
    monkeypatch.setattr("tensorstash.backends.torch.recipes.producers.CAN_TELL", False)
    x = torch.randn(64, requires_grad=True)
    with pytest.warns(ts.TensorStashWarning, match=r"nothing is made again: .*2\.10 or newer"), stash() as session:
        loss = F.gelu(x * 2).square().sum()
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.equal(gradient, torch.autograd.grad(F.gelu(x * 2).square().sum(), x)[0])
    assert not session.stats().recomputed


def test_tensors_without_a_recipe_are_counted_by_reason():
    weight = torch.randn(64, 64, requires_grad=True)
    with stash() as session:
        loss = ((torch.randn(64, 64) @ weight).cumsum(0) ** 2).sum()
    loss.backward()
    counted = session.stats().without_recipe
    assert counted["no rule for CumsumBackward0"] == Tally(1, 64 * 64 * 4)
    assert session.stats().to_dict()["without_recipe"]["no rule for CumsumBackward0"]["tensors"] == 1
    assert not session.stats().refused


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_the_values_of_a_nested_tensor_have_no_recipe():
    def gradients():
        return torch.autograd.grad(
            torch.nested.as_nested_tensor(rows, layout=torch.jagged).sin().values().square().sum(), rows
        )

    rows = [torch.randn(n, 4, requires_grad=True) for n in (3, 5)]
    expected = gradients()
    with stash() as session:
        assert are_same(gradients(), expected)
    assert session.stats().without_recipe


def test_each_tensor_that_is_made_with_others_is_refused_for_itself():
    leaf, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8).bfloat16().requires_grad_()
    with stash() as session:
        hidden = F.silu(leaf.sin())
        one, other = hidden.bfloat16(), hidden.bfloat16()
        first, second = (one @ weight).sum(), (other @ weight).sum()
    assert session.stats().recomputed["cast(silu)"].tensors == 2
    with torch.no_grad():
        other.mul_(2)
    expected = torch.autograd.grad((F.silu(leaf.sin()).bfloat16() @ weight).sum(), [weight])
    assert are_same(torch.autograd.grad(first, [weight], retain_graph=True), expected)
    with pytest.raises(SavedTensorModifiedError):
        torch.autograd.grad(second, [weight])


def test_what_is_made_of_the_same_before_and_after_an_unseen_change_is_not_the_same():
    def run(around, *, rewrites):
        torch.manual_seed(0)
        leaf, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8).bfloat16().requires_grad_()
        with around:
            hidden = F.silu(leaf.sin())
            losses = [(hidden.bfloat16() @ weight).sum()]
            if rewrites:
                hidden.data.mul_(2)
            losses.append((hidden.bfloat16() @ weight).sum())
        return losses, weight

    around = stash()
    run(around, rewrites=False)
    (before, after), weight = run(around, rewrites=True)
    (plain, _), other = run(nullcontext(), rewrites=True)
    assert are_same(torch.autograd.grad(before, [weight]), torch.autograd.grad(plain, [other]))
    with pytest.raises(StashError, match=r"rule cast\(silu\).*came out different"):
        torch.autograd.grad(after, [weight])


def test_tensors_without_elements_are_no_masks():
    norm = nn.BatchNorm1d(8).eval()
    with ts.stash(ts.Recompute(), framework="torch", min_bytes=0):
        loss = norm(torch.randn(4, 8)).square().sum()
    loss.backward()
    assert norm.weight.grad is not None


def test_what_several_need_is_made_and_read_once_in_each_step_however_little_is_read_ahead():
    convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))
    norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(6))
    images = torch.randn(4, 8, 64, 64)  # too large to share a record with others
    limits = ts.Limits(ahead=5 * images.nbytes)
    around = stash(ts.Recompute() | ts.DiskSpill(), min_bytes=2**10, limits=limits)
    made, read = [], []
    for _ in range(4):
        before = around.stats()
        x = images
        with around as session:
            for convolution, norm in zip(convolutions, norms, strict=True):
                x = F.relu(norm(convolution(x)))
            loss = x.square().mean()
        session.drain()
        loss.backward()
        step = around.stats() - before
        made.append(sum(runs.loads for runs in step.recomputed.values()))
        read.append((step.stages["disk"].loads, step.stages["disk"].tensors))
    assert made[2:] == [len(norms)] * 2
    assert all(loads == tensors for loads, tensors in read[2:]), read
