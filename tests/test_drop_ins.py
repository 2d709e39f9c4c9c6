"""The examples of both frameworks' documentation run on each of them, and on the reference engine."""

from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest

import tensorstash as ts
import tensorstash.reference as reference
from tensorstash.testing.labs import BACKENDS, lab_of


@pytest.fixture(params=BACKENDS)
def lab(request):
    return lab_of(request.param)


def as_it_is(lab, folder):
    return lambda x: x.detach(), lambda packed: packed


def as_numpy(lab, folder):
    """Paddle's: on PyTorch, ``numpy()`` of what requires grad is an error."""
    return lambda x: (x.detach() if lab.name == "torch" else x).numpy(), lab.tensor


def as_files(lab, folder):
    """PyTorch's tutorial."""
    numbers, (to_numpy, to_tensor) = count(), as_numpy(lab, folder)

    def pack(x):
        path = folder / f"{next(numbers)}.npy"
        np.save(path, to_numpy(x))
        return path

    return pack, lambda path: to_tensor(np.load(path))


def full(lab, value):
    return lab.tensor(np.full((3, 3), value, np.float32), requires_grad=True)


@pytest.mark.parametrize("pair", [as_it_is, as_numpy, as_files])
def test_a_documented_pair_gives_the_gradients_of_the_program(lab, pair, tmp_path):
    pack, unpack = (Mock(side_effect=hook) for hook in pair(lab, tmp_path))
    a, b = full(lab, 1.5), full(lab, 2.0)
    with ts.saved_tensors_hooks(pack_hook=pack, unpack_hook=unpack, framework=lab.name):
        y = a * b
    assert pack.call_count == 2
    y.sum().backward()
    assert unpack.call_count == 2
    assert a.grad.tolist() == [[2.0] * 3] * 3
    assert b.grad.tolist() == [[1.5] * 3] * 3


def test_a_documented_save_on_cpu_gives_the_gradients_of_the_program(lab):
    a = full(lab, 0.5)
    with ts.save_on_cpu(pin_memory=True, framework=lab.name) as session:
        y = (a * 2.0).exp()
    y.sum().backward()
    assert session.stats().seen.tensors > 0
    assert a.grad.tolist() == (y * 2.0).tolist()


def test_numpy_in_a_hook_is_a_copy_that_later_writes_do_not_reach():
    a = reference.full((3,), 2.0, requires_grad=True)
    with ts.saved_tensors_hooks(lambda x: x.numpy(), reference.tensor, framework="reference"):
        x = a * 1.0
        loss = (x * x).sum()
    with reference.no_grad():
        x.mul_(0.0)
    loss.backward()
    assert a.grad.tolist() == [4.0] * 3
