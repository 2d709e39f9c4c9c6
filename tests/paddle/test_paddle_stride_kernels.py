"""Programs that run with ``FLAGS_use_stride_kernel=0``: every view is a copy then, and Paddle has no others."""

import paddle
import pytest
from paddle_cases import bits

import tensorstash as ts
from tensorstash.testing.harness import settled
from tensorstash.testing.labs.paddle import PaddleLab
from tensorstash.testing.layouts import assert_same_arrays
from tensorstash.testing.programs import attention, lossless_policies, training

LAB = PaddleLab()


@pytest.fixture
def without_stride_kernels():
    paddle.set_flags({"FLAGS_use_stride_kernel": False})
    yield
    paddle.set_flags({"FLAGS_use_stride_kernel": True})


@pytest.mark.filterwarnings("ignore:nothing was stashed:tensorstash.TensorStashWarning")  # offload, on the host
@pytest.mark.parametrize("program", [attention, training])
def test_training_is_bitwise_as_without_hooks(without_stride_kernels, tmp_path, program):
    expected = program(LAB)
    for name, policy in lossless_policies(tmp_path).items():
        for enter in (lambda scope: scope, settled):
            scope = ts.stash(policy, min_bytes=0, framework="paddle")
            got = program(LAB, scope=lambda enter=enter, scope=scope: enter(scope))
            assert_same_arrays(got, expected, f"{name} with {enter}")


def test_what_only_views_of_memory_can_rebuild_is_kept_and_says_why(backend, request):
    whole = paddle.rand([3, 4])
    tensors = [whole.t(), whole[1:], whole.astype("bfloat16")]
    assert [backend.keep_reason(tensor) for tensor in tensors] == [None] * 3
    request.getfixturevalue("without_stride_kernels")
    assert [backend.keep_reason(tensor) for tensor in tensors] == ["FLAGS_use_stride_kernel is off"] * 3


def test_plain_tensors_are_stashed(without_stride_kernels, backend):
    for shape in ([], [5], [3, 4], [1, 4, 1]):
        tensor = paddle.rand(shape)
        assert backend.keep_reason(tensor) is None
        spec = backend.spec(tensor)
        back = backend.from_host(backend.to_host(tensor, spec).copy(), spec)
        assert backend.spec(back) == spec
        assert bits(back) == bits(tensor)
