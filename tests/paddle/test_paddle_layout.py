"""Every layout of every element type goes to the host and comes back as it was, and backward reads it rightly."""

import gc

import numpy as np
import paddle
import pytest
from inside import session_of
from paddle.autograd import saved_tensors_hooks
from paddle_cases import allocated, bits, gradients, noise

import tensorstash as ts
from tensorstash.backends.paddle.packed import _STORAGES
from tensorstash.stores.memory import Memory
from tensorstash.testing.harness import settled
from tensorstash.testing.labs.paddle import PaddleLab
from tensorstash.testing.layouts import assert_same_arrays
from tensorstash.testing.programs import attention, lossless_policies, training

VIEWS = {
    "transposed": lambda a, b: a.t() * b.t(),
    "rows at an offset": lambda a, b: a[1:] * b[1:],
    "columns": lambda a, b: a[:, 1:3] * b[:, 1:3],
    "one element": lambda a, b: a[2, 3] * b[1, 1],
    "expanded": lambda a, b: a[0:1].expand([4, 6]) * b,
    "all reversed, of a slice": lambda a, b: a[1:, 2:][::-1, ::-1] * b[1:, 2:][::-1, ::-1],
    "one block of memory, both ways": lambda a, b: a * b + a[::-1, ::-1] * b[::-1, ::-1] * a,
    "overlapping windows": lambda a, b: (
        paddle.as_strided(a, [5, 3], [1, 1], 8) * paddle.as_strided(b, [5, 3], [1, 1], 16)
    ),
}


def layout_of(tensor):
    return tensor.dtype, tensor.shape, tensor.strides, tensor._offset(), tensor.data_ptr() % 64, tensor.place


@pytest.mark.parametrize(
    ("views", "deduplicated"),
    [
        (lambda memory: (memory, memory[::-1], memory[:, ::-1], memory[::-1, ::-1].t()), 3),
        (lambda memory: (memory.reshape([-1])[15:31], memory.reshape([-1])[15::-1]), 0),
    ],
    ids=["the same reversed", "reversed from the same element"],
)
def test_a_view_and_one_reversed_are_one_content_where_they_are_the_same_memory(views, deduplicated):
    memory = paddle.rand([4, 8])
    session = session_of(ts.stash(ts.StoreIn(Memory()), min_bytes=0, framework="paddle"))
    with session.scope():
        handles = [session.pack(view) for view in views(memory)]
    assert session.stats().deduplicated.tensors == deduplicated
    session.drain()
    for view, handle in zip(views(memory), handles, strict=True):
        back = session.unpack(handle)
        assert layout_of(back) == layout_of(view)
        assert bits(back) == bits(view)


def test_rebuilding_leaks_no_memory(backend):
    spec = backend.spec(paddle.rand([16]))
    data = np.ones(16, np.float32)

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    for _ in range(2000):
        backend.from_host(data, spec)
    before = resident()
    for _ in range(30000):
        backend.from_host(data, spec)
    assert resident() - before < 1 << 20  # the Tensor constructor alone would have leaked 2.4 MB


@pytest.mark.parametrize("program", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("recipe", [(lambda tensor: tensor.numpy(), paddle.to_tensor), (paddle.clone, paddle.clone)])
def test_pairs_of_paddles_functions_are_right(backend, program, recipe):
    arrays = [noise(4, 6), noise(4, 6, seed=1)]
    expected = gradients(program, arrays)
    assert [gradients(program, arrays, hooks(*recipe)) for hooks in (backend.hooks, saved_tensors_hooks)] == [
        expected
    ] * 2


def test_packing_leaves_the_users_view_alone(pair):
    base = paddle.rand([4, 6])
    view = base[:, 1:3]
    other = paddle.rand([4, 2])
    other.stop_gradient = False
    with pair.hooks():
        other * view
    assert view.strides == [6, 1]
    assert view._is_shared_buffer_with(base)


def test_memory_that_was_swapped_under_a_tensor_has_another_token(backend):
    x, y = paddle.rand([4]), paddle.rand([4])
    with backend.hooks(lambda tensor: None, lambda packed: None):
        token, _ = backend.storage(x)
        y._share_buffer_to(x)
        assert backend.storage(x)[0] != token
        assert backend.storage(x)[0] == backend.storage(y)[0]


def test_no_more_than_the_last_few_storages_are_held_and_none_after_the_scope(backend):
    nbytes = 1 << 20
    gc.collect()
    before = allocated()
    with backend.hooks(lambda tensor: None, lambda packed: None):
        for _ in range(_STORAGES + 8):
            backend.storage(paddle.ones([nbytes // 4]))
        assert allocated() - before == _STORAGES * nbytes
    assert allocated() == before


LAB = PaddleLab()


@pytest.fixture
def without_stride_kernels():
    """Every view is a copy then, and Paddle has no others."""
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
    plain = [paddle.rand(shape) for shape in ([], [5], [3, 4], [1, 4, 1])]
    assert [backend.keep_reason(tensor) for tensor in plain] == [None] * 4


def test_a_view_between_elements_is_kept(backend):
    between, whole = (paddle.as_strided(paddle.rand([8, 12]), [5, 5], [13, 1], offset) for offset in (3, 4))
    assert backend.keep_reason(between) == "between the elements of its memory"
    assert backend.keep_reason(whole) is None
