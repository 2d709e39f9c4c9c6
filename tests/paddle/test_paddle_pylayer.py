"""``PyLayer`` under hooks behaves as it does without: what may be saved, what comes back, second derivatives."""

import numpy as np
import paddle
import pytest
from paddle.autograd import PyLayer
from paddle_cases import alive, bits, gradients, leaf, noise

import tensorstash as ts
from tensorstash.errors import SavedTensorModifiedError
from tests.processes import output_of


def layer(forward, backward):
    kind = type("Layer", (PyLayer,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    return lambda *args: kind.apply(*args)


def saved_inputs_forward(ctx, x, y):
    ctx.save_for_backward(x, y)
    return x * y


def saved_inputs_backward(ctx, grad):
    x, y = ctx.saved_tensor()
    return grad * y, grad * x


product = layer(saved_inputs_forward, saved_inputs_backward)


def square_forward(ctx, x):
    ctx.save_for_backward(x)
    return x * x


def square_backward(ctx, grad):
    (x,) = ctx.saved_tensor()
    return grad * 2 * x


square = layer(square_forward, square_backward)


def tanh_forward(ctx, x):
    y = paddle.tanh(x)
    ctx.save_for_backward(y)
    return y


def tanh_backward(ctx, grad):
    (y,) = ctx.saved_tensor()
    return grad * (1 - paddle.square(y))


tanh = layer(tanh_forward, tanh_backward)


def in_place_forward(ctx, x):
    out = x.tanh_()
    ctx.save_for_backward(out)
    return out, x * 2


def in_place_backward(ctx, grad, other):
    (out,) = ctx.saved_tensor()
    return grad * (1 - out * out) + other * 2


tanh_in_place = layer(in_place_forward, in_place_backward)


def returned_input_forward(ctx, x):
    ctx.save_for_backward(x)
    return x


def returned_in_place_forward(ctx, x):
    ctx.save_for_backward(x.tanh_())
    return x


def modified_output_forward(ctx, x):
    y = x.exp()
    ctx.save_for_backward(y)
    return y.add_(paddle.ones([1]))


@pytest.mark.parametrize("forward", [returned_input_forward, returned_in_place_forward, modified_output_forward])
@pytest.mark.parametrize("policy", ["keep", "recompute", "disk_spill"])
@pytest.mark.usefixtures("never_freed")
def test_a_layer_may_return_what_it_has_saved_with_another_version(forward, policy):
    apply = layer(forward, tanh_backward)
    x = leaf(noise(8, 8))

    def run():
        return bits(paddle.grad(apply(x * 2).sum(), [x])[0])

    expected = run()
    with ts.stash(policy, framework="paddle", min_bytes=1):
        assert run() == expected


def saving(*what):
    """A layer that saves ``what(x)`` and hands what it gets back to a list."""
    found = []

    def forward(ctx, x):
        ctx.save_for_backward(*(item(x) if callable(item) else item for item in what))
        return x * 2

    def backward(ctx, grad):
        found.append(ctx.saved_tensor())
        return grad * 2

    return layer(forward, backward), found


def test_what_is_no_tensor_is_given_back_as_it_was(pair):
    array = np.ones(3)
    apply, found = saving(lambda x: x, None, 3, array, "text", lambda x: [x, None, 2], lambda x: (x, [x]))
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
    def backward(ctx, grad):
        first, second = ctx.saved_tensor()[0], ctx.saved_tensor()[0]
        assert bits(first) == bits(second)
        first.zero_()
        assert bits(ctx.saved_tensor()[0]) == bits(second)
        return grad

    with pair.hooks():
        y = layer(square_forward, backward)(leaf(noise(3)) * 1.0)
    y.sum().backward()
    assert pair.unpacked == 3


def test_a_packed_tuple_or_list_is_opaque(backend):
    given = []

    def unpack(packed):
        given.append(type(packed))
        return paddle.to_tensor(packed[0])

    for kind in (tuple, list):
        x = leaf(noise(3))
        with backend.hooks(lambda tensor, kind=kind: kind((tensor.numpy(), "note")), unpack):
            y = square(x * 1.0)
        y.sum().backward()
        assert bits(x.grad) == bits(x.detach() * 2)
    assert given == [tuple, list]


@pytest.mark.parametrize("needs_grad", [True, False])
def test_stop_gradient_comes_back(pair, needs_grad):
    other = leaf([1.0, 2.0])
    x = leaf(noise(2), needs_grad) * 1.0
    seen = []

    def forward(ctx, x, other):
        ctx.save_for_backward(x)
        return x * other

    def backward(ctx, grad):
        seen.append(ctx.saved_tensor()[0].stop_gradient)
        return grad if needs_grad else None, grad

    with pair.hooks():
        y = layer(forward, backward)(x, other)
    y.sum().backward()
    assert seen == [not needs_grad]


def second_derivative(program, hooks=None):
    x = leaf(noise(5))
    inner = x * 1.0
    if hooks is None:
        y = program(inner)
    else:
        with hooks:
            y = program(inner)
    (first,) = paddle.grad(y.sum(), [x], create_graph=True)
    (second,) = paddle.grad((first * first).sum(), [x])
    return bits(first), bits(second)


@pytest.mark.parametrize("program", [square, tanh, lambda x: product(x, x), lambda x: square(paddle.exp(x))])
@pytest.mark.usefixtures("never_freed")
def test_second_derivatives_are_bitwise_equal(pair, program):
    assert second_derivative(program, pair.hooks()) == second_derivative(program)
    assert pair.copied


def test_second_derivatives_with_a_users_pair_that_forgets_the_history(backend):
    recipe = backend.hooks(lambda tensor: tensor.numpy(), lambda array: paddle.to_tensor(array))
    assert second_derivative(square, recipe) == second_derivative(square)


def test_methods_that_were_replaced_before_are_called():
    each = [f"apply {policy}, saved_tensor {policy}" for policy in (None, "keep", None)]
    assert output_of(REPLACED_BEFORE) == ", ".join(each) + "\n"


REPLACED_BEFORE = """
from contextlib import nullcontext
import paddle
from paddle.autograd import PyLayer, PyLayerContext

called = []


def apply(cls, *args):
    called.append(f"apply {policy}")
    return super(PyLayer, cls).apply(*args)


def saved_tensor(ctx, original=PyLayerContext.saved_tensor):
    called.append(f"saved_tensor {policy}")
    return original(ctx)


PyLayer.apply, PyLayerContext.saved_tensor = classmethod(apply), saved_tensor

import tensorstash as ts


class Doubled(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        return grad * x * 2


x = paddle.ones([4])
x.stop_gradient = False
for policy in (None, "keep", None):
    with ts.stash(policy, framework="paddle") if policy else nullcontext():
        Doubled.apply(x).sum().backward()
print(*called, sep=", ")
"""


def test_a_process_may_end_inside_of_scopes_of_two_threads_with_a_graph_alive():
    assert output_of(ENDS_INSIDE) == "done\n"


ENDS_INSIDE = """
import threading
import paddle
from tensorstash.backends.paddle.backend import PaddleBackend

x = paddle.rand([5])
x.stop_gradient = False
threading.Thread(target=PaddleBackend().hooks(lambda tensor: tensor.numpy(), paddle.to_tensor).__enter__).start()
PaddleBackend().hooks(lambda tensor: tensor.numpy(), paddle.to_tensor).__enter__()
kept = paddle.exp(x)
print("done")
"""


def tanh_and_exp():
    """A layer that saves both its outputs, one of them twice, and its input."""

    def forward(ctx, x):
        y, z = paddle.tanh(x), paddle.exp(x)
        ctx.save_for_backward(y, z, x, y)
        return y, z

    def backward(ctx, of_y, of_z):
        y, z, x, again = ctx.saved_tensor()
        assert [one.stop_gradient for one in (y, z, x)] == [False] * 3
        return of_y * (1 - y * again) + of_z * z

    return layer(forward, backward)


HELD = []


def held(x):
    HELD[:] = tanh_and_exp()(x)
    return HELD[0] * HELD[1]


OWN_OUTPUTS = {
    "held": held,
    "gone": lambda x: tanh(x) * 2.0,
    "one after the other": lambda x: tanh(tanh(x) * 2.0),
    "with nothing after it": lambda x: tanh(x),
    "transposed": lambda x: tanh(x.reshape([1, 5]).t()).reshape([5]),
    "several": lambda x: sum(tanh_and_exp()(x)),
}


@pytest.mark.parametrize("program", OWN_OUTPUTS.values(), ids=OWN_OUTPUTS.keys())
@pytest.mark.parametrize(
    "policy", [ts.Keep(), ts.Compress(min_ratio=1), ts.CpuOffload()], ids=lambda policy: policy.name
)
@pytest.mark.usefixtures("never_freed")
def test_second_derivatives_through_a_saved_output(program, policy):
    expected = second_derivative(program)
    assert second_derivative(program, ts.stash(policy, min_bytes=0, framework="paddle")) == expected
    assert second_derivative(program, ts.stash(policy, framework="paddle")) == expected  # all of it is kept
    HELD.clear()


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
def test_a_layer_that_raises_leaves_nothing_behind(pair, where, retain):
    before = alive()
    Raises.where = where
    x = leaf(noise(5)) * 1.0

    def step():
        with pair.hooks():
            y = Raises.apply(x)
        y.sum().backward(retain_graph=retain)

    with pytest.raises((RuntimeError, OSError)):
        step()
    paddle.exp(leaf([1.0]))  # outside of every scope: what was replaced is put back
    assert not pair.live
    assert alive() == before


def test_a_kept_parameter_is_the_parameter_itself(pair):
    weight = paddle.create_parameter([3], "float32")
    apply, found = saving(lambda x: weight)
    with pair.hooks():
        y = apply(leaf(noise(3)))
    y.sum().backward()
    assert found[0][0] is weight
    assert pair.kept == {"parameter": 1}


def test_nothing_saved_and_never_saved(pair):
    empty, found = saving()
    with pair.hooks():
        y = empty(leaf([1.0]))
        z = layer(lambda ctx, x: x * 2, lambda ctx, grad: (found.append(ctx.saved_tensor()), grad)[1])(leaf([1.0]))
    y.backward()
    z.backward()
    assert found == [(), None]


def test_the_last_of_two_saves_wins(pair):
    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        ctx.save_for_backward(x * 3)
        return x * 2

    found = []
    apply = layer(forward, lambda ctx, grad: (found.append(ctx.saved_tensor()), grad * 2)[1])
    x = leaf(noise(3))
    with pair.hooks():
        y = apply(x * 1.0)
    y.sum().backward()
    ((one,),) = found
    assert bits(one) == bits(x * 3)


@pytest.mark.usefixtures("never_freed")
def test_second_derivatives_of_a_layer_whose_apply_was_taken_before(pair):
    kind = type("Tanh", (PyLayer,), {"forward": staticmethod(tanh_forward), "backward": staticmethod(tanh_backward)})
    apply = kind.apply
    assert second_derivative(apply, pair.hooks()) == second_derivative(apply)


def test_a_retained_backward_that_raised_runs_again(pair):
    x = leaf(noise(5))
    Raises.where = "backward, after it asked"
    with pair.hooks():
        y = Raises.apply(x * 1.0)
    with pytest.raises((RuntimeError, OSError)):
        y.sum().backward(retain_graph=True)
    Raises.where = ""
    y.sum().backward()
    assert bits(x.grad) == bits(x)


def test_an_inplace_layer_and_a_layer_with_several_outputs(pair):
    program = lambda x: sum(tanh_in_place(x))  # noqa: E731
    assert gradients(program, [noise(4)], pair.hooks()) == gradients(program, [noise(4)])


def test_layers_inside_layers_keep_their_own(pair):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with paddle.enable_grad():
            inner = x.detach()
            inner.stop_gradient = False
            y = square(inner)
        ctx.inner, ctx.y = inner, y
        return y.detach()

    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        (inner,) = paddle.grad(ctx.y, [ctx.inner], [grad])
        return inner + 0 * x

    program = layer(forward, backward)
    assert gradients(program, [noise(4)], pair.hooks()) == gradients(program, [noise(4)])


def test_marks_and_materialised_gradients_still_work(pair):
    seen = []

    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x + x, x + x + x
        ctx.mark_non_differentiable(a)
        return a, b

    def backward(ctx, grad_a, grad_b):
        seen.append(grad_a.tolist())
        return grad_b

    x = leaf([1.0])
    with pair.hooks():
        a, b = layer(forward, backward)(x)
    b.sum().backward()
    assert seen == [[0.0]]
    assert a.stop_gradient
    assert x.grad.tolist() == [1.0]
