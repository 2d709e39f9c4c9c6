"""A wrapped layer of Paddle can be compiled, exported, copied and pickled, and stays wrapped where it should."""

import copy
import gc
import pickle
import weakref
from contextlib import contextmanager

import paddle
import pytest
from paddle import nn

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.paddle.repairs.surroundings import StaticGraphWarning
from tensorstash.errors import ConfigError
from tensorstash.policies.selectors import ModuleNames

SPEC = [paddle.static.InputSpec([None, 16], "float32")]


def network(depth=3):
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(depth)))


@pytest.fixture
def x():
    return paddle.randn([8, 16])


def wrapped(model, policy="compress"):
    return ts.wrap(model, policy, min_bytes=0)


def train(model, x):
    model(x).square().sum().backward()
    gradients = [parameter.grad.numpy() for parameter in model.parameters()]
    model.clear_gradients()
    return gradients


def assert_stashes(handle, model, x):
    before = handle.stats().stashed
    train(model, x)
    assert handle.stats().stashed.tensors > before.tensors


def assert_stands_aside(handle, model, x):
    before = handle.stats().seen
    train(model, x)
    assert handle.stats().seen == before


@pytest.mark.parametrize(
    "policy", ["compress", ts.Route((ts.Rule(ModuleNames("1"), ts.Compress(min_ratio=1)),))], ids=["all", "route"]
)
def test_exported_while_wrapped_and_afterwards(x, policy, tmp_path):
    model = network()
    handle = wrapped(model, policy)
    expected = model(x).numpy()

    def assert_exports(name):
        paddle.jit.save(model, str(tmp_path / name), input_spec=SPEC)
        assert (paddle.jit.load(str(tmp_path / name))(x).numpy() == expected).all()
        assert (model(x).numpy() == expected).all()

    assert_exports("while")
    assert_stashes(handle, model, x)
    handle.remove()
    assert_exports("after")
    assert_stands_aside(handle, model, x)


def test_a_model_of_the_high_level_interface_is_saved_while_wrapped_and_afterwards(x, tmp_path):
    model = network()
    trained = paddle.Model(model, SPEC)
    handle = wrapped(model)
    trained.save(str(tmp_path / "while"), training=False)
    assert_stashes(handle, model, x)
    handle.remove()
    trained.save(str(tmp_path / "after"), training=False)
    assert_stands_aside(handle, model, x)


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place'")
@pytest.mark.parametrize("wrap_first", [True, False])
def test_a_program_of_the_whole_model_runs_and_says_that_nothing_is_seen(x, wrap_first):
    model = network()
    handle = wrapped(model) if wrap_first else None
    compiled = paddle.jit.to_static(model, full_graph=True)
    handle = handle or wrapped(compiled)
    with pytest.warns(StaticGraphWarning):
        compiled(x).sum().backward()


def test_a_deep_copy_is_wrapped_until_it_or_the_original_is_unwrapped(x):
    model = network()
    handle = wrapped(model)
    twin = copy.deepcopy(model)
    third = copy.deepcopy(twin)
    twin[0][0].weight.set_value(paddle.zeros([16, 16]))
    assert (twin(x) != model(x)).any(), "the copy runs the weights of the original"
    assert_stashes(handle, twin, x)
    ts.unwrap(twin)
    assert_stands_aside(handle, twin, x)
    assert len(twin._forward_pre_hooks) == 0
    assert_stashes(handle, model, x)
    handle.remove()
    assert_stands_aside(handle, third, x)
    assert_stands_aside(handle, model, x)


def test_a_pickle_is_not_wrapped(x):
    model = network()
    handle = wrapped(model)
    data = pickle.dumps(model)
    assert b"tensorstash" not in data
    pickle.loads(data)(x).sum().backward()
    assert handle.stats().seen.tensors == 0
    assert_stashes(handle, model, x)


class Countdown(nn.Layer):
    """Calls itself, and raises at the end if told so."""

    def __init__(self, error=None):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.error = error

    def forward(self, x, n=2):
        if n == 0 and self.error is not None:
            raise self.error
        return self(paddle.tanh(self.linear(x)), n - 1) if n else x


def test_a_layer_that_calls_itself(x):
    plain = train(model := Countdown(), x)
    handle = wrapped(model)
    assert all((one == other).all() for one, other in zip(plain, train(model, x), strict=True))
    assert_stashes(handle, model, x)


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_no_hooks_are_left_whatever_is_raised(x, error):
    handle = wrapped(model := Countdown(error))
    with pytest.raises(error):
        model(x)
    before = handle.stats().seen
    x.stop_gradient = False
    x.exp().sum()
    assert handle.stats().seen == before


def test_without_gradients_no_scope_is_entered(x):
    entered = []

    @contextmanager
    def scope():
        entered.append(1)
        yield

    model = network()
    PaddleBackend().wrap_forward(model, scope)
    with paddle.no_grad():
        model(x)
    assert entered == []
    model(x)
    assert entered == [1]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_nested_wraps_are_removed_in_any_order_and_leave_nothing(x, order):
    model = network(1)
    before = dict(vars(model)) | {"_built": True}  # Paddle notes that it has been called by way of its hooks
    hooks = dict(model._forward_pre_hooks)
    backend, entered = PaddleBackend(), []

    def scope(number):
        @contextmanager
        def entering():
            entered.append(number)
            yield

        return entering

    undos = [backend.wrap_forward(model, scope(number)) for number in range(3)]
    active = [2, 1, 0]
    for number in order:
        entered.clear()
        model(x)
        assert entered == active
        undos[number]()
        active.remove(number)
    assert vars(model) == before
    assert model._forward_pre_hooks == hooks


def test_no_cycle_keeps_model_or_session_alive(x):
    gc.disable()
    try:
        model = network()
        handle = wrapped(model)
        train(model, x)
        gone = weakref.ref(model), weakref.ref(handle._session)
        del model, handle
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_what_is_no_layer_is_refused():
    with pytest.raises(ConfigError, match=r"expected a paddle\.nn\.Layer"):
        PaddleBackend().wrap_forward(abs, lambda: None)
