"""What is packed is freed when backward is done with it, by reference counting alone."""

import threading

import paddle
import pytest
from paddle_cases import bits, layer, leaf, noise
from test_paddle_pylayer import tanh_and_exp, tanh_in_place


def saved_by_operations(x):
    return (paddle.exp(x) @ x.t())[1:].sum()


def saved_by_layers(x):
    """The first saves its input and two outputs, the second what it has written in place."""
    y, z = tanh_and_exp(x)
    first, second = tanh_in_place(y * z)
    return (tanh_in_place(first * 2.0)[0] + second).sum()


programs = pytest.mark.parametrize("program", [saved_by_operations, saved_by_layers])
pytestmark = pytest.mark.usefixtures("counting_only", "either_way")


@programs
def test_backward_frees_everything_while_the_loss_lives(pair, program):
    with pair.hooks():
        loss = program(leaf(noise(3, 4)) * 1.0)
    assert pair.live
    loss.backward()
    assert not pair.live


def test_what_was_used_is_freed_while_backward_goes_on(pair):
    left = []

    def probe(grad):
        left.append(pair.live)
        return grad

    probed = layer(lambda x: (x * 1, []), probe)
    with pair.hooks():
        x = leaf(noise(4)) * 1.0
        for _ in range(3):
            x = paddle.exp(probed(x))
    x.sum().backward()
    assert left == [2, 1, 0]


def test_a_retaining_backward_on_one_thread_frees_late_nothing_of_another(pair, counting_only):
    ours, theirs = leaf(noise(3)) * 1.0, leaf(noise(3)) * 1.0
    inside, go_on = threading.Event(), threading.Event()

    def wait(grad):
        inside.set()
        assert go_on.wait(60)
        return grad

    with pair.hooks():
        loss = paddle.exp(ours).sum()
    with pair.hooks():
        held = layer(lambda x: (x * 1.0, []), wait)(theirs).sum()
    worker = threading.Thread(target=lambda: held.backward(retain_graph=True))
    worker.start()
    assert inside.wait(60)
    assert pair.live == 1
    loss.backward()
    assert not pair.live
    go_on.set()
    worker.join()


def test_a_gradient_alone_leaves_the_graph_usable_as_without_hooks(pair):
    x = leaf(noise(3, 4))
    with pair.hooks():
        loss = saved_by_operations(x * 1.0)
    (first,) = paddle.grad(loss, [x])
    (second,) = paddle.grad(loss, [x])
    loss.backward()
    assert bits(first) == bits(second) == bits(x.grad)
    assert not pair.live


def test_a_nested_retained_backward_does_not_lose_what_the_outer_one_needs(pair):
    def twice(grad):
        with paddle.enable_grad():
            y = leaf([2.0])
            with pair.hooks():
                z = y * y
            z.backward(retain_graph=True)
            z.backward()
        assert y.grad.item() == 8
        return grad

    x = leaf(noise(3))
    with pair.hooks():
        loss = paddle.exp(layer(lambda x: (x * 1, []), twice)(x * 1.0)).sum()
    loss.backward()
    assert bits(x.grad) == bits(paddle.exp(x.detach()))
    assert not pair.live
