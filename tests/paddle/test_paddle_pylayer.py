"""``PyLayer`` under hooks behaves as it does without: what may be saved, what comes back, second derivatives."""

import numpy as np
import paddle
import pytest
from paddle.autograd import PyLayer
from paddle_cases import alive, bits, gradients, layer, leaf, noise

import tensorstash as ts
from tensorstash.errors import SavedTensorModifiedError
from tests.processes import output_of

product = layer(lambda x, y: (x * y, [x, y]), lambda grad, x, y: (grad * y, grad * x))
square = layer(lambda x: (x * x, [x]), lambda grad, x: grad * 2 * x)
tanh = layer(lambda x: (y := paddle.tanh(x), [y]), lambda grad, y: grad * (1 - paddle.square(y)))


tanh_in_place = layer(
    lambda x: ((out := x.tanh_(), x * 2), [out]), lambda grad, other, out: grad * (1 - out * out) + other * 2
)


class Modified(PyLayer):
    """Writes into what it has saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y.add_(paddle.ones([1]))

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensor()[0]


RETURNED = [layer(run, lambda grad, y: grad * y) for run in (lambda x: (x, [x]), lambda x: (x, [x.tanh_()]))]


@pytest.mark.parametrize("apply", [*RETURNED, Modified.apply], ids=["input", "written input", "written output"])
@pytest.mark.parametrize("policy", ["keep", "recompute", "disk_spill"])
@pytest.mark.usefixtures("never_freed")
def test_a_layer_may_return_what_it_has_saved_with_another_version(apply, policy):
    x = leaf(noise(8, 8))

    def run():
        return bits(paddle.grad(apply(x * 2).sum(), [x])[0])

    expected = run()
    with ts.stash(policy, framework="paddle", min_bytes=1):
        assert run() == expected


def saving(what):
    """A layer that saves ``what(x)``, and a list that gets what comes back."""
    found = []

    def backward(grad, *saved):
        found.append(saved)
        return grad * 2

    return layer(lambda x: (x * 2, what(x)), backward), found


def test_what_is_no_tensor_is_given_back_as_it_was(pair):
    array = np.ones(3)
    apply, found = saving(lambda x: [x, None, 3, array, "text", [x, None, 2], (x, [x])])
    x = leaf(noise(4))
    with pair.hooks():
        y = apply(x * 1.0)
    y.sum().backward()
    ((first, nothing, three, same, text, as_list, as_tuple),) = found
    assert (nothing, three, text) == (None, 3, "text")
    assert same is array
    assert type(as_list) is list
    assert type(as_tuple) is tuple
    assert as_list[1:] == [None, 2]
    for tensor in (first, as_list[0], as_tuple[0], as_tuple[1][0]):
        assert bits(tensor) == bits(x)
    assert pair.copied.total() == 4


def test_two_reads_are_two_rounds_of_unpack(pair):
    class Reads(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            first, second = ctx.saved_tensor()[0], ctx.saved_tensor()[0]
            assert bits(first) == bits(second)
            first.zero_()
            assert bits(ctx.saved_tensor()[0]) == bits(second)
            return grad

    with pair.hooks():
        y = Reads.apply(leaf(noise(3)) * 1.0)
    y.sum().backward()
    assert pair.unpacked == 3


def test_a_packed_tuple_or_list_is_opaque(backend):
    given = []

    def unpack(packed):
        given.append(type(packed))
        return paddle.to_tensor(packed[0])

    for kind in (tuple, list):
        hooks = backend.hooks(lambda tensor, kind=kind: kind((tensor.numpy(), "note")), unpack)
        assert gradients(square, [noise(3)], hooks) == gradients(square, [noise(3)])
    assert given == [tuple, list]


def of_outputs(of_y, of_z, y, z, x, again):
    assert [one.stop_gradient for one in (y, z, x)] == [False] * 3
    return of_y * (1 - y * again) + of_z * z


tanh_and_exp = layer(lambda x: ((y := paddle.tanh(x), z := paddle.exp(x)), [y, z, x, y]), of_outputs)


@pytest.mark.usefixtures("never_freed")
def test_a_saved_output_shares_the_memory_and_version_of_what_is_returned():
    x = leaf(noise(5))
    with ts.stash(ts.Keep(), min_bytes=0, framework="paddle"):
        y = tanh(x * 1.0)
    loss = y.sum()
    assert y.inplace_version == 0
    y.detach().add_(paddle.ones([1]))
    with pytest.raises(SavedTensorModifiedError):
        loss.backward()


def test_methods_and_parameters_of_before_the_import_are_known_and_a_process_may_end_inside_of_scopes():
    each = [f"apply {policy}, saved_tensor {policy}" for policy in (None, "keep", None)]
    reasons = ["view of a parameter", "None", "view of a parameter"]
    assert output_of(IN_A_PROCESS_OF_ITS_OWN).splitlines() == [*reasons, ", ".join(each)]


IN_A_PROCESS_OF_ITS_OWN = """
import gc
import threading
from contextlib import nullcontext
import paddle
from paddle.autograd import PyLayer, PyLayerContext

called, frozen = [], paddle.nn.Linear(4, 4)
gc.freeze()
weight = paddle.create_parameter([4, 4], "float32")


def apply(cls, *args):
    called.append(f"apply {policy}")
    return super(PyLayer, cls).apply(*args)


def saved_tensor(ctx, original=PyLayerContext.saved_tensor):
    called.append(f"saved_tensor {policy}")
    return original(ctx)


PyLayer.apply, PyLayerContext.saved_tensor = classmethod(apply), saved_tensor

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend

keep_reason = PaddleBackend().keep_reason
print(keep_reason(weight.t()), keep_reason(frozen.weight.t()), sep="\\n")
wrapped = ts.wrap(frozen, "keep")
print(keep_reason(frozen.weight.t()))
from paddle_cases import layer, leaf

for policy in (None, "keep", None):
    with ts.stash(policy, framework="paddle") if policy else nullcontext():
        layer(lambda x: (x * 2, [x]), lambda grad, x: grad * x * 2)(leaf([1.0])).backward()
for enter in (lambda run: threading.Thread(target=run).start(), lambda run: run()):
    enter(ts.saved_tensors_hooks(lambda tensor: tensor.numpy(), paddle.to_tensor, framework="paddle").__enter__)
kept = paddle.exp(leaf([1.0]))
print(*called, sep=", ")
"""


class Raises(PyLayer):
    """Raises where it is told to."""

    where = ""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if Raises.where == "forward":
            raise RuntimeError("forward")
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        if Raises.where == "backward, before it asks":
            raise RuntimeError("backward")
        (x,) = ctx.saved_tensor()
        if Raises.where == "backward, after it asked":
            raise RuntimeError("backward")
        return grad * x


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("where", ["forward", "backward, before it asks", "backward, after it asked"])
def test_a_layer_that_raises_leaves_nothing_behind_and_a_graph_that_is_retained_runs_again(pair, where, retain):
    before = alive()
    x, losses = leaf(noise(5)), []

    def step():
        with pair.hooks():
            losses.append(Raises.apply(x * 1.0).sum())
        losses[0].backward(retain_graph=retain)

    Raises.where = where
    with pytest.raises((RuntimeError, OSError)):
        step()
    Raises.where = ""
    if retain and losses:
        losses[0].backward()
        assert bits(x.grad) == bits(x)
    losses.clear()
    paddle.exp(leaf([1.0]))  # outside of every scope: what was replaced is put back
    assert not pair.live
    assert alive() == before


def test_a_kept_parameter_is_the_parameter_itself(pair):
    weight = paddle.create_parameter([3], "float32")
    apply, found = saving(lambda x: [weight])
    with pair.hooks():
        y = apply(leaf(noise(3)))
    y.sum().backward()
    assert found[0][0] is weight
    assert pair.kept == {"parameter": 1}


@pytest.mark.parametrize("saves", [[], [0], [2, 1]], ids=["never", "nothing", "twice"])
def test_the_last_save_wins(pair, saves):
    found = []

    class Saves(PyLayer):
        @staticmethod
        def forward(ctx, x):
            for count in saves:
                ctx.save_for_backward(*[x * count] * count)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            found.append(ctx.saved_tensor())
            return grad * 2

    x = leaf(noise(3))
    with pair.hooks():
        y = Saves.apply(x * 1.0)
    y.sum().backward()
    (got,) = found
    assert (got and [bits(one) for one in got]) == {2: [bits(x)], 1: (), 0: None}[len(saves)]


def nested(x):
    """A layer whose backward derives the graph that its forward has made of another layer."""

    class Outer(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            with paddle.enable_grad():
                ctx.inner = x.detach()
                ctx.inner.stop_gradient = False
                ctx.y = square(ctx.inner)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, grad):
            (inner,) = paddle.grad(ctx.y, [ctx.inner], [grad])
            return inner + 0 * ctx.saved_tensor()[0]

    return Outer.apply(x)


def with_marks(x):
    """A layer of which one output has no derivative, and a gradient of zeros."""

    class Marks(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            a, b = x + x, x + x + x
            ctx.mark_non_differentiable(a)
            return a, b

        @staticmethod
        def backward(ctx, grad_a, grad_b):
            assert not grad_a.any()
            return grad_b * 3

    a, b = Marks.apply(x)
    assert a.stop_gradient
    return b


@pytest.mark.parametrize("program", [nested, with_marks, lambda x: sum(tanh_in_place(x))])
def test_a_layer_has_the_gradients_that_it_has_without_hooks(pair, program):
    assert gradients(program, [noise(4)], pair.hooks()) == gradients(program, [noise(4)])
    assert pair.copied
