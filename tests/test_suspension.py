"""Hooks are off in a suspended region and in force around it, on every framework."""

import numpy as np
import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
from tensorstash.errors import BackendError
from tensorstash.testing.labs import BACKENDS, lab_of

VALUES = np.linspace(-1, 1, 64, dtype=np.float32)


@pytest.fixture(params=BACKENDS)
def framework(request):
    return request.param


@pytest.fixture
def start(framework):
    return lab_of(framework).tensor(VALUES, requires_grad=True)


def of_torch():
    return lab_of("torch").tensor(VALUES, requires_grad=True)


@pytest.fixture
def stash(framework):
    return ts.stash(ts.Compress(), framework=framework, min_bytes=0)


def saved(stash):
    stash.drain()
    return stash.stats().seen.tensors


def test_nothing_is_saved_by_hooks_inside_and_everything_around_and_backward_may_be_either(framework, start, stash):
    plain = (start * 2.0).exp().exp().exp()
    plain.sum().backward()
    expected, start.grad = start.grad.tolist(), None
    with stash:
        x = (start * 2.0).exp()
        before = saved(stash)
        with ts.suspended(framework=framework):
            x = x.exp()
            assert saved(stash) == before > 0
        loss = x.exp().sum()
        assert saved(stash) > before
        with ts.suspended(framework=framework):  # it asks for what was saved before
            loss.backward()
    assert start.grad.tolist() == expected


def test_a_stash_inside_is_in_force_and_none_is_after_it(framework, start, stash):
    inner = ts.stash(ts.Compress(), framework=framework, min_bytes=0)
    with stash, ts.suspended(framework=framework):
        with inner:
            start.exp()
        count = saved(inner)
        with ts.suspended(framework=framework):
            start.exp()
        start.exp()
    assert saved(inner) == count > 0
    assert saved(stash) == 0


def test_hooks_that_outlast_the_region_are_an_error_and_those_around_are_back(framework, start, stash):
    inner = ts.stash(ts.Compress(), framework=framework, min_bytes=0)
    with stash:
        with pytest.raises(BackendError, match="innermost first"), ts.suspended(framework=framework):
            inner.__enter__()
        if framework == "paddle":  # where they can be told apart, they stay in force until they are left
            inner.__exit__(None, None, None)
        else:
            with pytest.raises(BackendError):
                inner.__exit__(None, None, None)
        start.exp()
    assert saved(stash) > 0
    start.exp()
    assert saved(inner) == 0


def test_an_interrupt_that_passes_hooks_left_in_the_region_arrives(framework, start, stash):
    inner = ts.stash(ts.Compress(), framework=framework, min_bytes=0)

    def interrupted():
        inner.__enter__()
        raise KeyboardInterrupt

    with stash:
        with pytest.raises(KeyboardInterrupt), ts.suspended(framework=framework):
            interrupted()
        inner.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        start.exp()
    assert saved(stash) > 0
    assert saved(inner) == 0


FUNCTIONALS = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones(64))[0],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y).sum())(x),
    "per sample": lambda f, x: torch.func.vmap(torch.func.grad(lambda y: f(y).sum()))(x[:, None]),
}


def step(functional, scope, region):
    start = of_torch()
    with scope:
        x = start * 2.0
        with region:
            inner = FUNCTIONALS[functional](torch.sin, x)
        loss = (inner * x).exp().sum()
    loss.backward()
    return start.grad


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # what PyTorch's own hessian uses
@pytest.mark.parametrize("policy", ["compress", "quantize:bits=8"])
@pytest.mark.parametrize("functional", FUNCTIONALS)
def test_functional_gradients_of_torch_run_inside(functional, policy):
    outside = ts.suspended(framework="torch")
    for _ in range(2):
        got = step(functional, ts.stash(policy, framework="torch", min_bytes=0), outside)
        expected = step(functional, ts.suspended(framework="torch"), ts.suspended(framework="torch"))
        assert torch.equal(got, expected) or ("quantize" in policy and torch.allclose(got, expected, 0.05, 0.05))


@pytest.mark.parametrize("nested", [1, 2])
def test_functional_gradients_under_hooks_are_refused_with_the_cure(nested):
    scopes = [ts.stash("compress", framework="torch") for _ in range(nested)]
    with pytest.raises(RuntimeError, match="support saved tensor hooks") as refused, scopes[0], scopes[-1]:
        FUNCTIONALS["grad"](torch.sin, of_torch())
    assert [note for note in refused.value.__notes__ if "tensorstash.suspended()" in note] == refused.value.__notes__
    assert len(refused.value.__notes__) == 1


def test_without_hooks_there_is_nothing_to_take_off(framework, start):
    with ts.suspended(framework=framework):
        start.exp().sum().backward()
    assert start.grad.tolist() == start.exp().tolist()


def test_a_framework_that_is_not_there_is_an_error():
    with pytest.raises(BackendError, match="several frameworks"):
        ts.suspended()


def test_hooks_of_others_are_off_inside_and_disabled_ones_stay_disabled():
    with save_on_cpu(), ts.stash("compress", framework="torch"), save_on_cpu():
        with ts.suspended(framework="torch"), disable_saved_tensors_hooks("not here"):
            with ts.suspended(framework="torch"):
                of_torch().exp()
            with pytest.raises(RuntimeError, match="not here"), save_on_cpu():
                pass
        with pytest.raises(RuntimeError), disable_saved_tensors_hooks("some are in force"):
            pass


def test_a_region_inside_of_a_checkpoint_is_run_again_as_it_was():
    def forward(x):
        y = x.exp()
        with ts.suspended(framework="torch"):
            y = y.sin()
        return y.exp()

    def gradient(run):
        start = of_torch()
        with ts.stash("compress", framework="torch", min_bytes=0):
            loss = run(start * 2.0).sum()
        loss.backward()
        return start.grad

    assert torch.equal(gradient(lambda x: checkpoint(forward, x, use_reentrant=False)), gradient(forward))
