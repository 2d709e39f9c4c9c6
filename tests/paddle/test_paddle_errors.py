"""What a hook raises reaches the user as it was raised, and the next step works."""

import numpy as np
import paddle
import pytest
from paddle.autograd import saved_tensors_hooks
from paddle_cases import gradients, layer, leaf, noise

from tensorstash.errors import StashError

pytestmark = pytest.mark.usefixtures("either_way")


class Odd(BaseException):
    pass


RAISED = (KeyError, KeyboardInterrupt, SystemExit, Odd)


def guarded(x):
    """Return what an operation gives whose backward writes into what it has saved."""
    return paddle.nn.functional.cross_entropy(x, paddle.to_tensor(1))


doubled = layer(lambda x: (x * 2, [x]), lambda grad, x: grad * 2)


def raising(kind):
    def hook(value):
        raise kind("odd") from ValueError("the cause")

    return hook


def assert_as_raised(caught, kind):
    assert type(caught.value) is kind
    assert caught.value.args == ("odd",)
    assert str(caught.value.__cause__) == "the cause"
    assert caught.traceback[-1].name == "hook"


def same(value):
    return value


def copied(tensor):
    return tensor.numpy()  # not the tensor: an output that the graph holds is a cycle through C++


def assert_the_next_step_works():
    assert paddle.is_grad_enabled()
    x = leaf([3.0])
    (x * x).backward()
    assert x.grad.item() == 6


each_kind = pytest.mark.parametrize("kind", RAISED)
each_program = pytest.mark.parametrize("program", [paddle.exp, guarded, doubled], ids=["operation", "guarded", "layer"])


@each_kind
@each_program
@pytest.mark.parametrize(
    "derive",
    [
        lambda loss, x: loss.backward(),
        lambda loss, x: paddle.autograd.backward([loss]),
        lambda loss, x: paddle.grad(loss, x),
    ],
    ids=["Tensor.backward", "paddle.autograd.backward", "paddle.grad"],
)
def test_an_exception_in_unpack_leaves_backward_unchanged(backend, program, kind, derive):
    x = leaf(noise(3))
    with backend.hooks(copied, raising(kind)):
        loss = program(x * 1.0).sum()
    with pytest.raises(kind) as caught:
        derive(loss, x)
    assert_as_raised(caught, kind)
    assert_the_next_step_works()


def test_a_foreign_pair_inside_a_scope_raises_its_own_exceptions(backend):
    with backend.hooks(same, same):
        with pytest.raises(KeyError, match="odd"), saved_tensors_hooks(raising(KeyError), same):
            paddle.exp(leaf([1.0]))
        with saved_tensors_hooks(copied, raising(KeyError)):
            y = paddle.exp(leaf([1.0]))
    with pytest.raises(KeyError, match="odd"):
        y.backward()


def test_backward_inside_the_scope_raises_what_pack_raised(backend):
    scope = backend.hooks(raising(KeyError), same)
    scope.__enter__()
    y = paddle.exp(leaf([1.0]))
    with pytest.raises(KeyError, match="odd"):
        y.backward()
    with pytest.raises(KeyError, match="odd"):
        scope.__exit__(None, None, None)
    with pytest.raises(StashError, match=r"could not be packed \(KeyError: 'odd'\)"):
        y.backward()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned a NoneType"),
        (noise(4, 6), "returned a ndarray"),
        (paddle.zeros([4, 6], "float64"), r"returned float64\(4, 6\) on cpu, expected float32\(4, 6\) on cpu"),
        (paddle.zeros([4, 6], "float16"), "returned float16"),
        (paddle.zeros([24]), r"returned float32\(24,\)"),
        (paddle.zeros([1, 6]), r"returned float32\(1, 6\)"),
        (paddle.zeros([8, 6]), r"returned float32\(8, 6\)"),
    ],
    ids=["None", "array", "float64", "float16", "flat", "one row", "too many rows"],
)
def test_what_unpack_must_not_return_is_a_named_error(backend, returned, message):
    x = leaf(noise(4, 6))
    with backend.hooks(copied, lambda packed: returned):
        y = paddle.exp(x)
    with pytest.raises(StashError, match=message):
        y.sum().backward()


@each_kind
@each_program
def test_an_exception_in_pack_leaves_the_scope_unchanged_and_nothing_more_is_packed(backend, program, kind):
    packed, hook = [], raising(kind)
    with pytest.raises(kind) as caught, backend.hooks(lambda tensor: hook(packed.append(tensor)), same):
        paddle.exp(program(leaf(noise(3)) * 1.0))
    assert len(packed) == 1
    packed.clear()
    assert_as_raised(caught, kind)
    assert_the_next_step_works()


def test_an_exception_of_the_body_comes_first_and_carries_a_note(backend):
    def forward():
        with backend.hooks(raising(KeyError), same):
            paddle.exp(leaf([1.0]))
            raise ValueError("body")

    with pytest.raises(ValueError, match="body") as caught:
        forward()
    assert any("KeyError" in note for note in caught.value.__notes__)


def test_an_exception_of_the_users_own_layer_is_left_alone(backend):
    with backend.hooks(same, same):
        y = layer(lambda x: (x * 2, []), raising(KeyError))(leaf([1.0]))
    with pytest.raises(OSError, match="odd"):
        y.backward()
    assert_the_next_step_works()


def test_a_tensor_that_needs_grad_and_a_slice_of_a_larger_one_are_fine(backend):
    def unpack(array):
        larger = leaf(np.concatenate([np.zeros_like(array), array]))
        return larger[4:]

    expected = gradients(paddle.exp, [noise(4, 6)])
    assert gradients(paddle.exp, [noise(4, 6)], backend.hooks(copied, unpack)) == expected
