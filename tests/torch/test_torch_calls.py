"""A wrapped module of PyTorch stays wrapped, whatever trainers, compilers and copies do to it."""

import warnings
from types import MethodType

import pytest
import torch
from torch import nn

import tensorstash as ts
from tests.frameworks.steps import assert_stands_aside, assert_stashes, wrapped


def network(depth=3):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(depth)))


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet():
    torch.compiler.reset()


@pytest.fixture
def x():
    return torch.randn(8, 16)


def accelerate_forward(model):
    """Replace forward as Accelerate does for mixed precision: by way of the plain function."""
    function = model.forward.__func__

    def autocast(self, *args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            return function(self, *args, **kwargs).float()

    model.forward = MethodType(autocast, model)


@pytest.mark.parametrize("wrap_first", [True, False])
def test_a_forward_that_a_trainer_replaces_drops_nothing(x, wrap_first):
    model = network()
    if not wrap_first:
        accelerate_forward(model)
    handle = wrapped(model)
    if wrap_first:
        accelerate_forward(model)
    replaced = vars(model)["forward"]
    assert_stashes(handle, model, x)
    handle.remove()
    assert vars(model)["forward"] is replaced


# The compiler looks at .grad of its inputs, which are no leaves between blocks, and PyTorch warns of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("wrap_first", [True, False])
@pytest.mark.parametrize("in_place", [True, False], ids=["model.compile()", "torch.compile(model)"])
def test_compiled_before_and_after(x, wrap_first, in_place):
    model = network()
    handle = wrapped(model) if wrap_first else None
    if in_place:
        model.compile(backend="aot_eager")
        compiled = model
    else:
        compiled = torch.compile(model, backend="aot_eager")
    on_top = model._compiled_call_impl
    handle = handle or wrapped(compiled)
    stashed = assert_stashes(handle, compiled, x)
    handle.remove()
    assert not in_place or model._compiled_call_impl is on_top
    assert "_call_impl" not in vars(model)
    assert assert_stands_aside(handle, compiled, x) == stashed


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_function_that_calls_a_wrapped_model_breaks_there(x):
    model = network()
    handle = wrapped(model)
    step = torch.compile(lambda x: 2 * model(x), backend="eager")
    step(x).sum().backward()
    assert handle.stats().stashed.tensors > 0
    with pytest.raises(RuntimeError, match=r"before the wrap.*block\.compile.*wrap the result"):
        torch.compile(lambda x: 3 * model(x), backend="eager", fullgraph=True)(x)


def test_a_replica_runs_its_own_weights_under_the_policy():
    model = nn.Linear(2, 2, bias=False)
    inner = wrapped(model, ts.Keep())
    with pytest.warns(ts.TensorStashWarning, match="wrapped already"):
        outer = wrapped(model)
    replica = model._replicate_for_data_parallel()
    replica._parameters = {"weight": torch.full((2, 2), 3.0), "bias": None}
    out = replica(torch.ones(1, 2, requires_grad=True))
    assert out.tolist() == [[6.0, 6.0]]
    assert (inner.stats().seen.tensors, outer.stats().seen.tensors) == (1, 0)
    with torch.no_grad():
        assert replica(torch.ones(1, 2)).tolist() == [[6.0, 6.0]]
    inner.remove()
    assert replica(torch.ones(1, 2, requires_grad=True)).tolist() == [[6.0, 6.0]]
    assert (inner.stats().seen.tensors, outer.stats().seen.tensors) == (1, 1)


MADE_OF = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": torch.jit.trace,
    "graph module": lambda model, x: torch.fx.symbolic_trace(model),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", MADE_OF)
def test_what_is_made_of_a_wrapped_model_is_right_and_who_trains_it_is_told(x, how):
    model = network()
    expected = model(x)
    handle = wrapped(model)
    made = MADE_OF[how](model, x)
    assert torch.equal(made(x), expected)
    if how in ("trace", "export"):
        made(x).sum().backward()
        with pytest.warns(ts.TensorStashWarning, match="Wrap the object that training calls"):
            handle.remove()
    assert torch.equal(model(x), expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("whole", [True, False], ids=["whole graph", "a graph for each block"])
def test_a_whole_compiled_graph_says_that_it_asks_for_everything_at_once(whole):
    model, x = network(), torch.randn(2**13, 16)
    if whole:
        model = torch.compile(model, backend="aot_eager")
    else:
        for block in model:
            block.compile(backend="aot_eager")
    handle = wrapped(model, limits=ts.Limits(in_flight=0, ahead=0))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ts.TensorStashWarning)
        for _ in range(4):
            model(x).square().sum().backward()
    assert handle.stats().stashed.nbytes > 2**20
    # Sessions that other tests have left may speak, too.
    assert sum("Compile the blocks" in str(one.message) for one in said) == whole


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_modules_and_graph_modules_are_wrapped(x):
    for model in (torch.jit.script(network()), torch.fx.symbolic_trace(network())):
        handle = wrapped(model)
        assert_stashes(handle, model, x)
        handle.remove()
        assert_stands_aside(handle, model, x)


def test_hooks_of_the_user_keep_their_order(x):
    order = []
    model = network(1)
    model.register_forward_pre_hook(lambda *_: order.append("before"))
    handle = wrapped(model)
    model.register_forward_hook(lambda *_: order.append("after"))
    assert_stashes(handle, model, x)
    assert order == ["before", "after"]
