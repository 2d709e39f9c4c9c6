"""What users call to wrap a model, and what it refuses; on a model of the reference engine."""

import pytest

import tensorstash as ts
from tensorstash import reference as ref
from tensorstash.policies.selectors import ModuleNames, named_for


class Trained(ref.nn.Module):
    """As Lightning's modules: what trains is not called ``forward``."""

    def __init__(self):
        super().__init__()
        self.encoder = ref.nn.Sequential(ref.nn.GELU(), ref.nn.GELU())

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch):
        return self.encoder(batch.exp()).sum()


@pytest.fixture
def x():
    return ref.tensor([[1.0, 2.0]], requires_grad=True)


@pytest.fixture
def model():
    return Trained()


def by_name(*patterns):
    return ts.Route((ts.Rule(ModuleNames(patterns), ts.Compress()),))


def test_methods_that_train_run_under_the_policy_and_no_others(model, x):
    alone = ts.wrap(model, "compress", min_bytes=0, methods="forward")
    model.training_step(x)
    assert alone.stats().seen.tensors == 0
    with pytest.warns(ts.TensorStashWarning, match=r"never called.*methods=\('forward', 'training_step'\)"):
        alone.remove()
    handle = ts.wrap(model, "compress", min_bytes=0)
    model.training_step(x)
    once = handle.stats().seen.tensors
    assert once > 0
    model(x)
    assert handle.stats().seen.tensors > once
    handle.remove()
    assert "training_step" not in vars(model)


def test_wraps_are_found_again_innermost_first_and_undone(model, x):
    assert ts.wrapped(model) == ()
    ts.wrap(model, "keep", min_bytes=0)
    ts.wrap(model.encoder, "compress", min_bytes=0)
    outer, inner = ts.wrapped(model)
    model(x)
    assert (outer.stats().seen.tensors, inner.stats().seen.tensors) == (0, 2)
    inner.remove()
    assert len(ts.wrapped(model)) == 1
    model(x)
    assert outer.stats().seen.tensors == 2
    ts.unwrap(model)
    ts.unwrap(model)
    assert ts.wrapped(model) == ()
    model(x)
    assert outer.stats().seen.tensors == 2


def test_a_rule_by_module_name_is_found_and_undone_with_its_modules(model, x):
    handle = ts.wrap(model, by_name("encoder.layers.1"), min_bytes=0)
    model(x)
    assert (handle.stats().seen.tensors, handle.stats().stashed.tensors) == (2, 1)
    (again,) = ts.wrapped(model)
    again.remove()
    assert not any("forward" in vars(part) for part in (model, *model.encoder.layers))


NAMES = ["", "module", "module.layers", "module.layers.0", "module.layers.0._orig_mod", "module.layers.0._orig_mod.mlp"]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("layers.0", {"module.layers.0": "layers.0", "module.layers.0._orig_mod": "layers.0"}),
        ("*.mlp", {"module.layers.0._orig_mod.mlp": "module.layers.0._orig_mod.mlp"}),
        ("layers.*.mlp", {"module.layers.0._orig_mod.mlp": "layers.0.mlp"}),
        ("module.layers", {"module.layers": "module.layers"}),
    ],
)
def test_patterns_see_through_what_trainers_put_around_models(pattern, meant):
    assert named_for([pattern], NAMES) == meant
