"""What is packed is freed when backward is done with it, by reference counting alone."""

import threading

import paddle
import pytest
from paddle.autograd import PyLayer
from paddle_cases import bits, leaf, noise


class Tanh(PyLayer):
    @staticmethod
    def forward(ctx, x):
        y = paddle.tanh(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        _, y = ctx.saved_tensor()
        return grad * (1 - y * y)


def saved_by_operations(x):
    return (paddle.exp(x) @ x.t())[1:].sum()


def saved_by_a_layer(x):
    return Tanh.apply(Tanh.apply(x) * 2.0).sum()


class TanhInPlace(PyLayer):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensor()
        return grad * (1 - y * y)


def saved_by_a_layer_in_place(x):
    return TanhInPlace.apply(TanhInPlace.apply(x) * 2.0).sum()


programs = pytest.mark.parametrize("program", [saved_by_operations, saved_by_a_layer, saved_by_a_layer_in_place])
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

    class Probe(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            left.append(pair.live)
            return grad

    with pair.hooks():
        x = leaf(noise(4)) * 1.0
        for _ in range(3):
            x = paddle.exp(Probe.apply(x))
    x.sum().backward()
    assert left == [2, 1, 0]


def test_a_retaining_backward_on_one_thread_frees_late_nothing_of_another(pair, counting_only):
    ours, theirs = leaf(noise(3)) * 1.0, leaf(noise(3)) * 1.0
    inside, go_on = threading.Event(), threading.Event()

    class Waits(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            inside.set()
            assert go_on.wait(60)
            return grad

    with pair.hooks():
        loss = paddle.exp(ours).sum()
    with pair.hooks():
        held = Waits.apply(theirs).sum()
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
    class Twice(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
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
        loss = paddle.exp(Twice.apply(x * 1.0)).sum()
    loss.backward()
    assert bits(x.grad) == bits(paddle.exp(x.detach()))
    assert not pair.live
