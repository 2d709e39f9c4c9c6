"""What cannot be rebuilt exactly, or would save nothing, is kept; and the backend says why."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode


class FlatWeight(nn.Parameter):
    pass


class Labelled(torch.Tensor):
    pass


zeros = torch._efficientzerotensor


def two(values):
    return TwoTensor(values, values.clone())


def nested(**layout):
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], **layout)


def fake():
    with FakeTensorMode():
        return torch.randn(3)


def observed(transform):
    """Return a tensor inside of a transform."""
    seen = []
    transform(lambda x: seen.append(x * 1) or seen[0].sum())(torch.randn(3))
    return seen[0]


KINDS = {
    "parameter of a class of its own": (lambda: FlatWeight(torch.randn(4, 4), requires_grad=False), "parameter"),
    "view of one": (lambda: FlatWeight(torch.randn(4, 4), requires_grad=False).t(), "view of a parameter"),
    "buffer": (lambda: nn.Buffer(torch.randn(3)), None),
    "array of NumPy": (lambda: torch.from_numpy(np.zeros(8, np.float32)), "memory of another library"),
    "lent": (lambda: torch.from_dlpack(np.zeros(8, np.float32)), "memory of another library"),
    "shared with processes": (lambda: torch.randn(8).share_memory_(), "memory of another library"),
    "part of a shared one": (lambda: torch.randn(8).share_memory_()[2:], "memory of another library"),
    "fake": (fake, "no real memory"),
    "under vmap": (lambda: observed(torch.func.vmap), "function transform"),
    "under grad": (lambda: observed(torch.func.grad), "function transform"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "sparse layout"),
    "sparse rows": (lambda: torch.eye(4).to_sparse_csr(), "sparse layout"),
    "sparse columns": (lambda: torch.eye(4).to_sparse_csc(), "sparse layout"),
    "sparse blocks": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), "sparse layout"),
    "nested": (nested, "nested"),
    "nested and jagged": (lambda: nested(layout=torch.jagged), "subclass"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8), "quantized"),
    "below a byte": (lambda: torch.empty(4, dtype=torch.int1), "dtype"),
    "meta": (lambda: torch.randn(3, device="meta"), "no real memory"),
    "zeros": (lambda: zeros(3), "no real memory"),
    "zeros transposed": (lambda: zeros(3, 4).t(), "no real memory"),
    "subclass": (lambda: torch.randn(3).as_subclass(Labelled), "subclass"),
    "wrapper": (lambda: two(torch.randn(3)), "subclass"),
    "parameter of a wrapper": (lambda: nn.Parameter(two(torch.randn(3))), "parameter"),
    "functional": (lambda: torch._to_functional_tensor(torch.randn(3)), "tracing"),
}
if torch.backends.mkldnn.is_available():
    KINDS["mkldnn"] = (lambda: torch.randn(2, 2).to_mkldnn(), "opaque layout")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of kinds that are deprecated, or in beta
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_rebuilt_or_is_not_ours_is_kept_and_can_be_described(backend, kind):
    make, reason = KINDS[kind]
    tensor = make()
    assert backend.keep_reason(tensor) == reason
    assert backend.describe(tensor).endswith(f" on {tensor.device}")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_sparse_tensor_has_no_size_and_a_nested_one_has(backend):
    with pytest.raises(RuntimeError, match="nbytes"):
        backend.nbytes(torch.eye(4).to_sparse())
    assert [backend.nbytes(each) for each in (nested(), nested(layout=torch.jagged))] == [72, 72]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_values_are_not_baked_into_a_traced_program(pair, mode):
    def gradient(x):
        x = x.detach().requires_grad_()
        with pair.hooks():
            y = (x.exp() * x.sin()).sum()
        return torch.autograd.grad(y, x)[0]

    traced = make_fx(gradient, tracing_mode=mode)(torch.randn(4))
    assert not pair.copied
    other = torch.randn(4)
    assert torch.equal(traced(other), gradient(other))
    assert pair.copied


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing_by_jit_is_seen_and_a_mode_of_the_user_is_no_tracing(backend):
    reasons = []

    def observe(x):
        reasons.append(backend.keep_reason(x * 1))
        return x

    torch.jit.trace(observe, torch.randn(3), check_trace=False)
    with FlopCounterMode(display=False):
        observe(torch.randn(3))
    assert reasons == ["tracing", None]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_describe_says_dtype_shape_and_device(backend):
    assert backend.describe(torch.zeros(4, 8, dtype=torch.bfloat16)) == "bfloat16(4, 8) on cpu"
    assert backend.describe(nn.Parameter(torch.zeros(2))) == "float32(2,) on cpu"
    assert backend.describe(torch.randn(3).as_subclass(Labelled)) == "Labelled float32(3,) on cpu"
    assert "nested" in backend.describe(nested())
