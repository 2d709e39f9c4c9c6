"""A wrapped layer of Paddle can be compiled, exported, copied and pickled, and stays wrapped where it should."""

import paddle
import pytest
from paddle import nn

import tensorstash as ts
from tensorstash.policies.selectors import ModuleNames
from tests.frameworks.steps import assert_stands_aside, assert_stashes, wrapped

SPEC = [paddle.static.InputSpec([None, 16], "float32")]


def network(depth=3):
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(depth)))


@pytest.fixture
def x():
    return paddle.randn([8, 16])


def test_exported_while_wrapped_and_afterwards(x, tmp_path):
    model = network()
    handle = wrapped(model, ts.Route((ts.Rule(ModuleNames("1"), ts.Compress(min_ratio=1)),)))
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


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place'")
@pytest.mark.parametrize("wrap_first", [True, False])
def test_a_program_of_the_whole_model_runs_and_says_that_nothing_is_seen(x, wrap_first):
    model = network()
    handle = wrapped(model) if wrap_first else None
    compiled = paddle.jit.to_static(model, full_graph=True)
    handle = handle or wrapped(compiled)
    for _ in range(2):
        compiled(x).sum().backward()
    with pytest.warns(ts.TensorStashWarning, match="nothing was seen.*to_static"):
        compiled(x).sum().backward()
    assert not handle.stats().stashed.tensors
