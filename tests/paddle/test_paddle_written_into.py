"""What backward writes into is never the user's, nor what another backward will ask for."""

from contextlib import nullcontext

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


def backwards(program, scope, retained=(True, False)):
    """Return the softmax before and after some backwards, and the gradient of each."""
    leaf = paddle.to_tensor(LOGITS, stop_gradient=False)
    with scope:
        loss, softmax = program(leaf * 1.0)
    before = bits(softmax)
    gradients = []
    for retain in retained:
        leaf.clear_gradient()
        loss.sum().backward(retain_graph=retain)
        gradients.append(bits(leaf.grad))
    return before, bits(softmax), gradients


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
def test_the_users_softmax_and_a_second_gradient_are_as_before(program, scope):
    _, _, (expected,) = backwards(program, nullcontext(), [False])
    before, after, gradients = backwards(program, scope())
    assert after == before
    assert gradients == [expected, expected]


def test_another_thread_is_as_with_a_scope_or_without_hooks(in_a_thread):
    scope = ts.stash(ts.Keep(), framework="paddle")
    for around, retained in ((scope, [True, False]), (nullcontext(), [False])):
        with ts.stash(ts.Keep(), framework="paddle"):
            before, after, gradients = in_a_thread(lambda: backwards(loss_and_softmax, around, retained))  # noqa: B023
        assert after == before
        assert set(gradients) == set(backwards(loss_and_softmax, nullcontext(), [False])[2])
