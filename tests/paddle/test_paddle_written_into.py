"""What backward writes into is never the user's, nor what another backward will ask for."""

import threading

import numpy as np
import paddle
import paddle.nn.functional as functional
import pytest
from paddle.autograd import saved_tensors_hooks
from paddle_cases import STASHES, bits

import tensorstash as ts

pytestmark = pytest.mark.filterwarnings("ignore::paddle.utils.deprecated.VisibleDeprecationWarning")

LOGITS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
LABELS = np.arange(6).reshape(6, 1) % 5


def loss_and_softmax(logits):
    return functional.softmax_with_cross_entropy(logits, paddle.to_tensor(LABELS), return_softmax=True)


def soft_labels(logits):
    labels = paddle.nn.functional.softmax(paddle.to_tensor(LOGITS[::-1].copy()))
    return functional.softmax_with_cross_entropy(logits, labels, soft_label=True, return_softmax=True)


def transposed(logits):
    return loss_and_softmax(logits.t().clone().t())


PROGRAMS = {"hard labels": loss_and_softmax, "soft labels": soft_labels, "strided": transposed}

SCOPES = {
    **STASHES,
    "a pair that passes through": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "a pair that returns its own copy each time": lambda: saved_tensors_hooks(lambda x: x.clone(), lambda x: x),
}


@pytest.fixture
def patched():
    """The hooks of the package in force around, and a scope of this thread, so that foreign pairs go through them."""
    with ts.stash(ts.Keep(), framework="paddle"):
        yield


def twice(program, scope):
    """Return the softmax before and after two backwards, and the gradient of each."""
    leaf = paddle.to_tensor(LOGITS, stop_gradient=False)
    with scope:
        loss, softmax = program(leaf * 1.0)
    before = bits(softmax)
    gradients = []
    for retain in (True, False):
        leaf.clear_gradient()
        loss.sum().backward(retain_graph=retain)
        gradients.append(bits(leaf.grad))
    return before, bits(softmax), gradients


def expected_gradient(program):
    leaf = paddle.to_tensor(LOGITS, stop_gradient=False)
    program(leaf * 1.0)[0].sum().backward()
    return bits(leaf.grad)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
def test_the_users_softmax_and_a_second_gradient_are_as_before(patched, program, scope):
    expected = expected_gradient(program)
    before, after, gradients = twice(program, scope())
    assert after == before
    assert gradients == [expected, expected]


def test_another_thread_without_a_scope_is_as_without_hooks(patched):
    found = []
    worker = threading.Thread(
        target=lambda: found.append(twice(loss_and_softmax, ts.stash(ts.Keep(), framework="paddle")))
    )
    plain = threading.Thread(target=lambda: found.append(unhooked()))

    def unhooked():
        leaf = paddle.to_tensor(LOGITS, stop_gradient=False)
        loss, softmax = loss_and_softmax(leaf * 1.0)
        before = bits(softmax)
        loss.sum().backward()
        return before, bits(softmax), [bits(leaf.grad)]

    for thread in (worker, plain):
        thread.start()
        thread.join()
    for before, after, gradients in found:
        assert after == before
        assert set(gradients) == {expected_gradient(loss_and_softmax)}


def test_what_pack_raises_inside_such_an_operation_is_reported(backend):
    def refuse(tensor):
        raise ZeroDivisionError("pack")

    def step():
        with backend.hooks(refuse, lambda x: x):
            loss_and_softmax(paddle.to_tensor(LOGITS, stop_gradient=False) * 1.0)

    with pytest.raises(ZeroDivisionError):
        step()


def test_what_unpack_raises_inside_such_an_operation_is_raised(backend):
    def refuse(packed):
        raise ZeroDivisionError("unpack")

    leaf = paddle.to_tensor(LOGITS, stop_gradient=False)
    with backend.hooks(lambda x: x.detach(), refuse):
        loss, _ = loss_and_softmax(leaf * 1.0)
    with pytest.raises(ZeroDivisionError):
        loss.sum().backward()
