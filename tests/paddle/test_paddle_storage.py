"""Tokens of storages are equal only where the storage is provably the same one."""

import gc

import paddle
import pytest
from paddle_cases import allocated

from tensorstash.backends.paddle.packed import _STORAGES


@pytest.fixture
def scope(backend):
    with backend.hooks(lambda tensor: None, lambda packed: None):
        yield


def test_the_storages_that_were_seen_last_are_known_again(backend, scope):
    tensors = [paddle.rand([4, 6]) for _ in range(_STORAGES + 1)]
    tokens = [backend.storage(tensor)[0] for tensor in tensors]
    again = [backend.storage(tensor)[0] for tensor in reversed(tensors)]
    assert [one == other for one, other in zip(again, reversed(tokens), strict=True)] == [True] * _STORAGES + [False]


def test_memory_that_was_swapped_under_a_tensor_has_another_token(backend, scope):
    x, y = paddle.rand([4]), paddle.rand([4])
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
