"""What cannot be rebuilt exactly, or would save nothing, is kept; and the backend says why."""

import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor


def test_views_of_parameters_of_any_class_are_kept(backend):
    class FlatWeight(nn.Parameter):
        pass

    weight = FlatWeight(torch.randn(4, 4), requires_grad=False)
    assert backend.keep_reason(weight) == "parameter"
    assert type(weight.t()) is torch.Tensor
    assert backend.keep_reason(weight.t()) == "view of a parameter"


@pytest.mark.filterwarnings("ignore:Sparse (CSR|BSR|CSC|BSC)")
def test_sparse_tensors_are_kept(backend):
    dense = torch.eye(4)
    for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))):
        assert backend.keep_reason(sparse) == "sparse layout"
        assert "on cpu" in backend.describe(sparse)
    with pytest.raises(RuntimeError, match="nbytes"):
        backend.nbytes(dense.to_sparse())


def test_mkldnn_tensors_are_kept(backend):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build has no oneDNN")
    tensor = torch.randn(2, 2).to_mkldnn()
    assert backend.keep_reason(tensor) == "opaque layout"
    assert backend.describe(tensor) == "float32(2, 2) on cpu"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_kept(backend):
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    strided = torch.nested.nested_tensor(parts)
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert backend.keep_reason(strided) == "nested"
    assert backend.keep_reason(jagged) == "subclass"
    for tensor in (strided, jagged):
        assert "nested" in backend.describe(tensor).lower()
        assert backend.nbytes(tensor) == 72


def test_quantized_tensors_are_kept(backend):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    assert backend.keep_reason(tensor) == "quantized"


def test_dtypes_below_a_byte_are_kept(backend):
    assert backend.keep_reason(torch.empty(4, dtype=torch.int1)) == "dtype"


def test_tensors_without_real_memory_are_kept(backend):
    assert backend.keep_reason(torch.randn(3, device="meta")) == "no real memory"
    assert backend.keep_reason(torch._efficientzerotensor(3)) == "no real memory"
    assert backend.keep_reason(torch._efficientzerotensor(3, 4).t()) == "no real memory"
    with FakeTensorMode():
        assert backend.keep_reason(torch.randn(3)) == "no real memory"


def test_subclasses_are_kept(backend):
    class Labelled(torch.Tensor):
        pass

    labelled = torch.randn(3).as_subclass(Labelled)
    assert backend.keep_reason(labelled) == "subclass"
    assert "Labelled" in backend.describe(labelled)
    assert backend.keep_reason(TwoTensor(torch.randn(3), torch.randn(3))) == "subclass"
    assert backend.keep_reason(nn.Parameter(TwoTensor(torch.randn(3), torch.randn(3)))) == "parameter"


def test_functional_tensors_are_kept(backend):
    assert backend.keep_reason(torch._to_functional_tensor(torch.randn(3))) == "tracing"


def test_tensors_under_function_transforms_are_kept(backend):
    reasons = []

    def observe(x):
        y = x * 1
        reasons.append(backend.keep_reason(y))
        return y.sum()

    torch.func.vmap(observe)(torch.randn(2, 3))
    torch.func.grad(observe)(torch.randn(3))
    assert reasons == ["function transform", "function transform"]


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


def test_tracing_by_jit_is_seen(backend):
    reasons = []

    def observe(x):
        reasons.append(backend.keep_reason(x * 1))
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(observe, torch.randn(3), check_trace=False)
    assert reasons == ["tracing"]


def test_distributed_tensors_are_kept(backend):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.randn(4, 4), init_device_mesh("cpu", (1,)))
        assert backend.keep_reason(tensor * 1) == "subclass"
        assert backend.keep_reason(nn.Parameter(tensor)) == "parameter"
        assert backend.describe(tensor) == "DTensor float32(4, 4) on cpu"
    finally:
        dist.destroy_process_group()


def test_memory_of_another_library_is_kept(backend):
    shared = torch.randn(8).share_memory_()
    lent = torch.from_dlpack(np.zeros(8, np.float32))
    for tensor in (torch.from_numpy(np.zeros(8, np.float32)), shared, shared[2:], lent):
        assert backend.keep_reason(tensor) == "memory of another library"
    assert backend.keep_reason(torch.zeros(8)) is None


def test_buffers_can_be_stashed(backend):
    assert backend.keep_reason(nn.Buffer(torch.randn(3))) is None


def test_user_dispatch_modes_are_no_tracing(backend):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert backend.keep_reason(torch.randn(3)) is None


def test_describe_says_dtype_shape_and_device(backend):
    assert backend.describe(torch.zeros(4, 8, dtype=torch.bfloat16)) == "bfloat16(4, 8) on cpu"
    assert backend.describe(nn.Parameter(torch.zeros(2))) == "float32(2,) on cpu"
    assert backend.describe(torch.zeros(3, device="meta")) == "float32(3,) on meta"
