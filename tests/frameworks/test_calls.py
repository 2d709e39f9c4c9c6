"""A wrapped module can be copied, pickled and nested, may call itself, and stays wrapped until it is unwrapped."""

import copy
import gc
import pickle
import weakref

import pytest
from inside import session_of

import tensorstash as ts
from tests.frameworks.steps import assert_stands_aside, assert_stashes, noting, train, wrapped


def test_a_deep_copy_is_wrapped_until_it_or_the_original_is_unwrapped(framework):
    lab, model = framework.lab, framework.network()
    handle = wrapped(model)
    twin = copy.deepcopy(model)
    third = copy.deepcopy(twin)
    plain = lab.bits(model(framework.batch())).tobytes()
    for parameter in twin.parameters():
        lab.write_unversioned(parameter, 0.0)
    assert lab.bits(twin(framework.batch())).tobytes() != plain, "the copy runs the weights of the original"
    assert lab.bits(model(framework.batch())).tobytes() == plain
    assert_stashes(handle, twin, framework.batch())
    ts.unwrap(twin)
    assert_stands_aside(handle, twin, framework.batch())
    assert_stashes(handle, model, framework.batch())
    handle.remove()
    assert_stands_aside(handle, third, framework.batch())
    assert_stands_aside(handle, model, framework.batch())


def test_a_pickle_is_not_wrapped(framework):
    model = framework.network()
    handle = wrapped(model)
    data = pickle.dumps(model)
    assert b"tensorstash" not in data
    assert_stands_aside(handle, pickle.loads(data), framework.batch())
    assert_stashes(handle, model, framework.batch())


def test_a_module_that_calls_itself_trains_as_without(framework):
    nn = framework.nn

    class Countdown(framework.module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x, n=2):
            return self(self.linear(x).tanh(), n - 1) if n else x

    model = Countdown()
    plain = train(model, framework.batch())
    handle = wrapped(model)
    assert train(model, framework.batch()) == plain
    assert_stashes(handle, model, framework.batch())


def attributes(model):
    """Return the attributes of a module and the entries of its tables, but for Paddle's note of the first call."""
    found = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(model).items()}
    return {name: value for name, value in found.items() if name != "_built"}


def test_without_gradients_no_scope_is_entered(framework):
    entered, model = [], framework.network()
    framework.backend.wrap_forward(model, noting(entered, 1))
    with framework.no_grad():
        model(framework.batch())
    assert entered == []
    model(framework.batch())
    assert entered == [1]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_nested_wraps_are_removed_in_any_order_and_leave_nothing(framework, order):
    entered, model = [], framework.network()
    before = attributes(model)
    undos = [framework.backend.wrap_forward(model, noting(entered, number)) for number in range(3)]
    active = [2, 1, 0]
    for number in order:
        entered.clear()
        model(framework.batch())
        assert entered == active
        undos[number]()
        active.remove(number)
    assert attributes(model) == before


def test_no_cycle_keeps_model_or_session_alive(framework):
    gc.disable()
    try:
        model = framework.network()
        handle = wrapped(model)
        train(model, framework.batch())
        gone = weakref.ref(model), weakref.ref(session_of(handle))
        del model, handle
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
