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


class Plain:
    """A model of no framework."""

    def __init__(self):
        self.weight = 2

    def forward(self, x: int, *, shift: int = 0) -> int:
        """Scale and shift."""
        if x < 0:
            raise ArithmeticError(x)
        return self.weight * x + shift


@pytest.fixture
def model():
    return Plain()


class Scopes:
    """Counts and names the scopes that are open."""

    def __init__(self):
        self.open = 0
        self.entered = []

    def named(self, name):
        @contextmanager
        def scope():
            self.open += 1
            self.entered.append(name)
            try:
                yield
            finally:
                self.open -= 1

        return scope


@pytest.fixture
def scopes():
    return Scopes()


def test_a_deep_copy_of_the_forward_alone_brings_its_own_model(scopes):
    holder = {"model": Plain()}
    replace_method(holder["model"], scopes.named("a"))
    twin = copy.deepcopy({"forward": holder["model"].forward, **holder})
    twin["model"].weight = 10
    assert twin["forward"](3) == 30
    assert holder["model"].forward(3) == 6


def test_a_pickle_keeps_an_instance_forward_that_was_replaced(scopes):
    model = Plain()
    model.forward = abs
    replace_method(model, scopes.named("a"))
    twin = pickle.loads(pickle.dumps(model))
    assert twin.forward is abs


def test_signature_name_and_documentation_lookups_see_the_model_s_own_forward(model, scopes):
    signature, name = inspect.signature(model.forward), model.forward.__name__
    code, function = model.forward.__code__, model.forward.__func__
    replace_method(model, scopes.named("a"))
    replace_method(model, scopes.named("b"))
    assert inspect.signature(model.forward) == signature
    assert model.forward.__name__ == name
    assert model.forward.__code__ is code
    assert model.forward.__func__ is function
    assert model.forward.__self__ is model
    with pytest.raises(AttributeError):
        _ = model.forward.no_such_name


def test_an_instance_forward_is_called_and_put_back(model, scopes):
    def patched(x):
        return 100 * x

    vars(model)["forward"] = patched
    undo = replace_method(model, scopes.named("a"))
    assert model.forward(3) == 300
    undo()
    assert vars(model)["forward"] is patched
    assert scopes.entered == ["a"]


def test_undo_is_idempotent(model, scopes):
    undo = replace_method(model, scopes.named("a"))
    undo()
    again = replace_method(model, scopes.named("b"))
    undo()
    assert model.forward(1) == 2
    assert scopes.entered == ["b"]
    again()
    assert "forward" not in vars(model)


def test_a_patch_of_somebody_else_on_top_survives_the_undo(model, scopes):
    undo = replace_method(model, scopes.named("a"))
    ours = model.forward
    vars(model)["forward"] = theirs = lambda x: ours(x) + 1000
    assert model.forward(1) == 1002
    undo()
    assert vars(model)["forward"] is theirs
    assert model.forward(1) == 1002
    assert scopes.entered == ["a"]


@pytest.mark.parametrize("bad", [3, object(), type("Slotted", (), {"__slots__": (), "forward": abs})()])
def test_what_has_no_forward_to_replace_is_refused(bad, scopes):
    with pytest.raises(ConfigError, match="expected a model"):
        replace_method(bad, scopes.named("a"))


def test_no_cycle_keeps_the_model_alive(scopes):
    gc.disable()
    try:
        model = Plain()
        undo = replace_method(model, scopes.named("a"))
        model.forward(1)
        gone, forward = weakref.ref(model), model.forward
        del model
        assert gone() is None
        with pytest.raises(BackendError, match="gone"):
            forward(1)
        undo()
    finally:
        gc.enable()


def test_a_deep_copy_of_nested_replacements_stays_nested(model, scopes):
    replace_method(model, scopes.named("a"))
    replace_method(model, scopes.named("b"))
    twin = copy.deepcopy(model)
    twin.weight = 10
    assert twin.forward(3) == 30
    assert scopes.entered == ["b", "a"]


def test_a_pickle_of_the_forward_alone_brings_its_own_model(model, scopes):
    replace_method(model, scopes.named("a"))
    assert pickle.loads(pickle.dumps(model.forward))(3) == 6
    assert scopes.entered == []


def test_the_scope_is_released_by_the_undo(model):
    class Session:
        @contextmanager
        def scope(self):
            yield

    session = Session()
    gone = weakref.ref(session)
    undo = replace_method(model, session.scope)
    model.forward(1)
    undo()
    del session
    assert gone() is None


def test_static_and_inherited_forwards_are_found(scopes):
    class Static:
        @staticmethod
        def forward(x):
            return -x

    class Child(Plain):
        pass

    static, child = Static(), Child()
    replace_method(static, scopes.named("a"))
    replace_method(child, scopes.named("b"))
    assert static.forward(3) == -3
    assert child.forward(3) == 6
    assert scopes.entered == ["a", "b"]
