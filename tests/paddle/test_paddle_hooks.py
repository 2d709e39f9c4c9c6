"""Pairs of hooks nest, belong to a thread, and leave Paddle as it was."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import paddle
import pytest
from paddle.autograd import saved_tensors_hooks
from paddle.base import core
from paddle_cases import gradients, hooked, layer, leaf, noise

from tensorstash.backends.paddle.hooks import _without_autocast
from tensorstash.errors import BackendError, SavedTensorModifiedError
from tests.frameworks.copying import Log

pytestmark = pytest.mark.usefixtures("either_way")


def same(value):
    return value


def save_one():
    """Run an operation that saves one tensor."""
    return paddle.exp(leaf([1.0, 2.0]))


def test_leaving_on_another_thread_is_an_error_and_ends_the_scope(backend, in_a_thread):
    log = Log()
    scope = backend.hooks(log.pack, log.unpack)
    scope.__enter__()
    with pytest.raises(BackendError, match="thread"):
        in_a_thread(lambda: scope.__exit__(None, None, None))
    save_one()
    assert not log.packs


def test_another_threads_graph_keeps_the_inplace_check(backend, in_a_thread):
    def other():
        y = paddle.exp(leaf(noise(3, 3)) * 1.0)
        loss = (y * y).sum()
        y.add_(paddle.ones([3, 3]))
        loss.backward()

    with backend.hooks(same, same), pytest.raises(SavedTensorModifiedError, match="inplace"):
        in_a_thread(other)


def test_hooks_stay_registered_until_no_thread_that_uses_scopes_is_left(backend):
    entered, may_end = threading.Event(), threading.Event()

    def other():
        with backend.hooks(same, same):
            pass
        entered.set()
        assert may_end.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(30)
    with backend.hooks(same, same):
        pass
    save_one()
    assert hooked()  # the other thread may be saving a tensor at this moment
    may_end.set()
    thread.join()
    save_one()
    assert not hooked()


def test_hooks_run_without_gradient_recording_and_save_nothing_themselves(backend):
    packed, modes = [], []

    def pack(tensor):
        packed.append(tensor.shape)
        modes.append(paddle.is_grad_enabled())
        with paddle.enable_grad():
            return (tensor * tensor.detach()).numpy()

    def unpack(array):
        modes.append(paddle.is_grad_enabled())
        return paddle.to_tensor(array)

    def enabled(x):
        paddle.set_grad_enabled(True)
        return x * 2, [x]

    apply = layer(enabled, lambda grad, x: grad * x)
    with backend.hooks(pack, unpack):
        apply(paddle.exp(leaf([3.0]))).backward()
    assert packed == [[1]] * 2
    assert modes == [False] * 4


def test_what_was_saved_beside_the_scope_of_another_thread_can_be_differentiated_twice_after_it(pair, in_a_thread):
    x = leaf(noise(3, 3))
    with pair.hooks():
        y = in_a_thread(lambda: paddle.exp(x))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), 2 * y.numpy())


def test_another_threads_layers_may_save_anything(backend, in_a_thread):
    def derived(grad, _, nothing, pair):
        assert nothing is None
        return grad * (pair[1] - 1)

    x = leaf([1.0])
    with backend.hooks(same, same):
        in_a_thread(lambda: layer(lambda x: (x * 2, [x, None, [x, 3]]), derived)(x).backward())
    assert x.grad.item() == 2


def test_many_threads_train_at_once_each_under_its_own_pair(pair, backend):
    def train(scopes):
        return [gradients(lambda a: paddle.exp(a @ a.t()) @ a, [noise(4, 4)], scope) for scope in scopes]

    pairs = [type(pair)(backend) for _ in range(4)]
    with ThreadPoolExecutor(len(pairs)) as pool:
        found = list(pool.map(train, ([each.hooks() for _ in range(20)] for each in pairs)))
    assert found == [train([nullcontext()]) * 20] * 4
    assert len({each.copied.total() for each in pairs}) == 1


def test_foreign_hooks_that_no_object_has_entered_are_an_error(backend):
    core.eager.register_saved_tensors_hooks(same, same)
    try:
        with pytest.raises(BackendError, match="could not be put back"):
            backend.hooks(same, same).__enter__()
    finally:
        core.eager.reset_saved_tensors_hooks()


def test_backward_may_run_under_other_hooks_than_forward(pair, backend):
    log, x = Log(), leaf(noise(3, 3))
    with pair.hooks():
        y = paddle.exp(x * x)
    with backend.hooks(log.pack, log.unpack), saved_tensors_hooks(log.pack, log.unpack):
        y.sum().backward()
    assert not log.packs
    assert pair.unpacked == 3


def level(new=None):
    """Return the level of autocast, which is ``new`` if that is given."""
    amp = core._get_amp_attrs()
    if new is not None:
        amp._amp_level = new
    return amp._amp_level


def test_a_hook_runs_with_autocast_off_and_it_is_on_again_after_errors(monkeypatch):
    monkeypatch.setattr(core, "is_compiled_with_cuda", lambda: True)
    before, on = level(), level(core.AmpLevel.O2)
    seen = []
    hook = _without_autocast(lambda value: seen.append(level()) or 1 / value)
    try:
        assert hook(2) == 0.5
        with pytest.raises(ZeroDivisionError):
            hook(0)
        seen.append(level())
    finally:
        level(before)
    assert seen == [core.AmpLevel.O0, core.AmpLevel.O0, on]
