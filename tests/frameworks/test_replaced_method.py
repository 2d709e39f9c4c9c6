"""A replaced forward runs inside its scope, and leaves no other trace in the model."""

import copy
import gc
import inspect
import pickle
import weakref
from contextlib import contextmanager

import pytest

from tensorstash.backends.forward import replace_method
from tensorstash.errors import BackendError, ConfigError
from tests.frameworks.steps import noting


class Plain:
    """A model of no framework."""

    def __init__(self):
        self.weight = 2

    def forward(self, x: int, *, shift: int = 0) -> int:
        """Scale and shift."""
        return self.weight * x + shift


@pytest.fixture
def model():
    return Plain()


@pytest.fixture
def entered():
    """The names of the scopes that were entered."""
    return []


def test_deep_copies_of_model_and_forward_stay_nested_and_bring_their_own_model(model, entered):
    for name in "ab":
        replace_method(model, noting(entered, name))
    twin, pair = copy.deepcopy(model), copy.deepcopy({"forward": model.forward, "model": model})
    twin.weight = pair["model"].weight = 10
    assert [twin.forward(3), pair["forward"](3), model.forward(3)] == [30, 30, 6]
    assert entered == ["b", "a"] * 3


def test_a_pickle_has_the_forward_of_before(model, entered):
    model.forward = abs
    replace_method(model, noting(entered, "a"))
    assert pickle.loads(pickle.dumps(model)).forward is abs


def test_signature_name_and_documentation_lookups_see_the_model_s_own_forward(model, entered):
    signature, name = inspect.signature(model.forward), model.forward.__name__
    code, function = model.forward.__code__, model.forward.__func__
    replace_method(model, noting(entered, "a"))
    replace_method(model, noting(entered, "b"))
    assert inspect.signature(model.forward) == signature
    assert model.forward.__name__ == name
    assert model.forward.__code__ is code
    assert model.forward.__func__ is function
    assert model.forward.__self__ is model
    with pytest.raises(AttributeError):
        _ = model.forward.no_such_name


def test_an_instance_forward_is_called_and_an_undo_puts_it_back_once(model, entered):
    vars(model)["forward"] = patched = lambda x: 100 * x
    undo = replace_method(model, noting(entered, "a"))
    assert model.forward(3) == 300
    undo()
    assert vars(model)["forward"] is patched
    again = replace_method(model, noting(entered, "b"))
    undo()
    assert model.forward(3) == 300
    assert entered == ["a", "b"]
    again()
    assert vars(model)["forward"] is patched


def test_a_patch_of_somebody_else_on_top_survives_the_undo(model, entered):
    undo = replace_method(model, noting(entered, "a"))
    ours = model.forward
    vars(model)["forward"] = theirs = lambda x: ours(x) + 1000
    assert model.forward(1) == 1002
    undo()
    assert vars(model)["forward"] is theirs
    assert model.forward(1) == 1002
    assert entered == ["a"]


@pytest.mark.parametrize("bad", [3, object(), type("Slotted", (), {"__slots__": (), "forward": abs})()])
def test_what_has_no_forward_to_replace_is_refused(bad, entered):
    with pytest.raises(ConfigError, match="expected a model"):
        replace_method(bad, noting(entered, "a"))


def test_nothing_keeps_the_model_alive_and_the_undo_releases_the_scope(entered):
    class Session:
        @contextmanager
        def scope(self):
            yield

    gc.disable()
    try:
        model, session = Plain(), Session()
        undo = replace_method(model, session.scope)
        model.forward(1)
        gone, gone_session, forward = weakref.ref(model), weakref.ref(session), model.forward
        del model, session
        assert gone() is None
        with pytest.raises(BackendError, match="gone"):
            forward(1)
        undo()
        assert gone_session() is None
    finally:
        gc.enable()


def test_static_and_inherited_forwards_are_found(entered):
    class Static:
        @staticmethod
        def forward(x):
            return -x

    static, child = Static(), type("Child", (Plain,), {})()
    replace_method(static, noting(entered, "a"))
    replace_method(child, noting(entered, "b"))
    assert static.forward(3) == -3
    assert child.forward(3) == 6
    assert entered == ["a", "b"]
