"""The examples of both frameworks' documentation run on each of them, and on the reference engine."""

import numpy as np
import paddle
import pytest
import torch

import tensorstash as ts
import tensorstash.reference as reference


class Program:
    """A product of two tensors, by an operation and by a function of the user, in one framework."""

    name = "torch"

    def ones(self, value):
        return torch.full((3, 3), value, requires_grad=True)

    def tensor(self, array):
        return torch.from_numpy(array)

    def function(self, a, b):
        return _of_torch.apply(a, b)


class PaddleProgram(Program):
    name = "paddle"

    def ones(self, value):
        made = paddle.full([3, 3], value)
        made.stop_gradient = False
        return made

    def tensor(self, array):
        return paddle.to_tensor(array)

    def function(self, a, b):
        return _of_paddle.apply(a, b)


class ReferenceProgram(Program):
    name = "reference"

    def ones(self, value):
        return reference.full((3, 3), value, requires_grad=True)

    def tensor(self, array):
        return reference.tensor(array)

    def function(self, a, b):
        return _of_reference.apply(a, b)


def _product(layer):
    class Multiply(layer):
        @staticmethod
        def forward(ctx, a, b):
            y = a * b
            ctx.save_for_backward(a, b)
            return y

        @staticmethod
        def backward(ctx, dy):
            a, b = ctx.saved_tensors if layer is torch.autograd.Function else ctx.saved_tensor()
            return dy * b, dy * a

    return Multiply


_of_torch, _of_paddle, _of_reference = (
    _product(layer) for layer in (torch.autograd.Function, paddle.autograd.PyLayer, reference.PyLayer)
)


@pytest.fixture(params=[Program, PaddleProgram, ReferenceProgram], ids=lambda program: program.name)
def program(request):
    return request.param()


class Pair:
    """A pair of the documentation.

    Args:
        program: whose tensors are packed.
        folder: an empty one.
    """

    def __init__(self, program, folder):
        self.program, self.folder, self.packs, self.unpacks = program, folder, 0, 0

    def pack_hook(self, x):
        self.packs += 1
        return self.pack(x)

    def unpack_hook(self, packed):
        self.unpacks += 1
        return self.unpack(packed)


class Same(Pair):
    def pack(self, x):
        return x.detach()

    def unpack(self, packed):
        return packed


class Numpy(Pair):
    """Paddle's: on PyTorch, ``numpy()`` of what requires grad is an error."""

    def pack(self, x):
        return (x.detach() if self.program.name == "torch" else x).numpy()

    def unpack(self, packed):
        return self.program.tensor(packed)


class File(Numpy):
    """PyTorch's tutorial."""

    def pack(self, x):
        path = self.folder / f"{self.packs}.npy"
        np.save(path, super().pack(x))
        return path

    def unpack(self, packed):
        return super().unpack(np.load(packed))


@pytest.mark.parametrize("kind", [Same, Numpy, File])
@pytest.mark.parametrize("by", ["operation", "function"])
def test_a_documented_pair_gives_the_gradients_of_the_program(program, kind, by, tmp_path):
    pair = kind(program, tmp_path)
    a, b = program.ones(1.5), program.ones(2.0)
    with ts.saved_tensors_hooks(pack_hook=pair.pack_hook, unpack_hook=pair.unpack_hook, framework=program.name):
        y = a * b if by == "operation" else program.function(a, b)
    assert pair.packs == 2
    y.sum().backward()
    assert pair.unpacks == 2
    assert a.grad.tolist() == [[2.0] * 3] * 3
    assert b.grad.tolist() == [[1.5] * 3] * 3


def test_a_documented_save_on_cpu_gives_the_gradients_of_the_program(program):
    a = program.ones(0.5)
    with ts.save_on_cpu(pin_memory=True, framework=program.name) as session:
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


def test_numpy_of_what_requires_grad_is_refused_while_gradients_are_recorded():
    with pytest.raises(RuntimeError, match="requires grad"):
        reference.full((3,), 2.0, requires_grad=True).numpy()
