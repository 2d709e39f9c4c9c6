"""What was saved last may stay where it is, within a budget, and is as safe there as anywhere."""

import threading

import numpy as np
import pytest
from gates import Gated

import tensorstash as ts
import tensorstash.reference as ref
from tensorstash.engine.payloads.capture import ResidentWindow
from tensorstash.errors import SavedTensorModifiedError
from tensorstash.policies import StoreIn
from tensorstash.testing.labs import BACKENDS, lab_of
from tensorstash.testing.layouts import assert_same_bits, floats

NBYTES = 400


def stash(gate, framework="reference", policy=None, **limits):
    return ts.stash(policy or StoreIn(gate), framework=framework, min_bytes=0, limits=ts.Limits(timeout_s=60, **limits))


def chain(lab, x, depth=6):
    y = lab.mul(x, x)
    for _ in range(depth):
        y = lab.exp(lab.mul(y, y))
    return lab.sum(y)


class Waiting:
    """As much of a payload as waiting takes."""

    def __init__(self, nbytes):
        self.nbytes = nbytes


def test_the_oldest_leave_first_and_the_limit_holds_to_the_byte():
    window, held = ResidentWindow(100), [Waiting(n) for n in (40, 60, 1, 99, 100, 101, 0)]
    due = [window.add(payload) for payload in held]
    assert due == [[], [], [held[0]], [held[1]], [held[2], held[3]], [held[4], held[5]], []]
    assert window.clear() == [held[6]]
    assert window.clear() == []


def test_with_nothing_allowed_nothing_waits():
    window, held = ResidentWindow(0), [Waiting(n) for n in (5, 0, 7)]
    assert [window.add(payload) for payload in held] == [[one] for one in held]


def test_what_is_dropped_while_it_waits_is_forgotten():
    window, last = ResidentWindow(100), Waiting(100)
    window.add(Waiting(60))
    assert window.add(last) == []
    assert window.clear() == [last]


def test_the_latest_never_move_and_the_others_do():
    gate = Gated()
    scope = stash(gate, resident=2 * NBYTES, in_flight=0)
    x = ref.tensor(np.linspace(0, 1, NBYTES // 4, dtype=np.float32), requires_grad=True)
    with scope:
        y = x
        for _ in range(5):
            y = y.exp()
        loss = y.sum()
    assert gate.opened[0].put_count == scope.stats().stashed.tensors - 2 == 3
    loss.backward()
    assert scope.stats().forwarded == 2
    assert gate.opened[0].get_count == 3
    assert gate.slots == 0


@pytest.mark.parametrize("resident", [0, 700, 10**6])
@pytest.mark.parametrize("in_flight", [0, 10**6])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_the_same_whatever_stays(backend, resident, in_flight):
    lab = lab_of(backend)
    gradients = []
    for limits in (None, {"resident": resident, "in_flight": in_flight}):
        x = lab.tensor(floats(10, 10) * 0.1, requires_grad=True)
        if limits is None:
            y = chain(lab, x)
        else:
            with stash(Gated(), backend, **limits):
                y = chain(lab, x)
        lab.backward(y)
        gradients.append(lab.gradient(x))
    assert_same_bits(gradients[1], gradients[0], "a gradient")


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("in_flight", [0, 10**6])
def test_what_is_modified_while_it_stays_is_refused(drained, in_flight):
    gate = Gated()
    x = ref.tensor(np.ones(100, np.float32), requires_grad=True)
    with stash(gate, resident=10**6, in_flight=in_flight) as session:
        y = x.exp()
        loss = y.sum()
    with ref.no_grad():
        y.mul_(0.0)
    if drained:
        session.drain()
    with pytest.raises(SavedTensorModifiedError, match="at version 1; expected version 0"):
        loss.backward()
    assert gate.slots == 0


def test_draining_captures_what_stays_and_makes_it_immune():
    gate = Gated()
    x = ref.tensor(np.ones(100, np.float32), requires_grad=True)
    with stash(gate, resident=10**6) as session:
        y = x.exp()
        loss = y.sum()
    assert gate.opened[0].put_count == 0
    session.drain()
    assert gate.opened[0].put_count == 1
    with ref.no_grad():
        y.mul_(0.0)
    loss.backward()
    assert np.array_equal(x.grad.numpy(), np.exp(np.ones(100, np.float32)))


def test_what_another_thread_pushes_out_while_it_is_modified_is_refused():
    """The other thread captures at once, in the middle of an in-place kernel that has not counted yet."""
    gate = Gated()
    scope = stash(gate, resident=NBYTES, in_flight=0)
    x = ref.tensor(np.ones(100, np.float32), requires_grad=True)
    with scope as session:
        y = x.exp()
        loss = y.sum()

    def push_out():
        with session._session.scope():
            ref.tensor(np.ones(100, np.float32), requires_grad=True).exp()

    thread = threading.Thread(target=push_out)
    thread.start()
    thread.join()
    assert gate.opened[0].put_count == 1
    with ref.no_grad():
        y.mul_(0.0)
    with pytest.raises(SavedTensorModifiedError):
        loss.backward()


def test_a_dropped_graph_frees_what_stays(no_gc):
    gate = Gated()
    scope = stash(gate, resident=10**6)
    x = ref.tensor(np.ones(100, np.float32), requires_grad=True)
    with scope as session:
        loss = x.exp().sum()
    del loss
    session.drain()
    assert gate.opened[0].put_count == 0


def test_a_policy_that_loses_something_does_so_at_once():
    gate = Gated()
    policy = ts.Quantize(8) | StoreIn(gate)
    with stash(gate, policy=policy, resident=10**6, in_flight=0):
        ref.tensor(np.linspace(0, 1, 4096, dtype=np.float32), requires_grad=True).exp()
    assert gate.opened[0].put_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_content_that_several_operations_saved_is_read_once(backend):
    lab, gate = lab_of(backend), Gated()
    x = lab.tensor(floats(10, 10), requires_grad=True)
    with stash(gate, backend, in_flight=0) as session:
        y = lab.exp(x)
        z = lab.sum(lab.mul(lab.mul(y, y), y))
    assert session.stats().deduplicated.tensors > 0
    lab.backward(z)
    assert gate.opened[0].get_count == gate.opened[0].put_count


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_what_several_operations_saved_is_one_tensor_until_somebody_writes(backend):
    lab, gate = lab_of(backend), Gated()
    scope = stash(gate, backend, in_flight=0)
    x = lab.tensor(floats(10, 10), requires_grad=True)
    with scope as session:
        y = lab.mul(x, x)
        shared = [session._session.pack(y) for _ in range(4)]
    session.drain()
    one, other = (session._session.unpack(handle) for handle in shared[:2])
    assert gate.opened[0].get_count == 1
    assert session._session.backend.storage(one) == session._session.backend.storage(other)
    lab.add_(one, 7.0)
    third = session._session.unpack(shared[2])
    assert_same_bits(lab.bits(third), lab.bits(y), "what nobody wrote into")
    assert gate.opened[0].get_count == 2
    assert session._session._state.prefetcher.budget.used == NBYTES
    del third  # the last gets the same, which counts as long as anybody has it
    session._session.unpack(shared[3])
    assert session._session._state.prefetcher.budget.used == 0
