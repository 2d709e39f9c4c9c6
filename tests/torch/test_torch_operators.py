"""Every differentiable operator that PyTorch lists, on PyTorch's own sample inputs."""

from contextlib import nullcontext
from itertools import islice

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

pytest.importorskip("expecttest", reason="PyTorch's own operator samples need it: pip install expecttest")

from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings("ignore")  # samples of deprecated and prototype operators

UNREPAIRABLE = {"nn.functional.rrelu": "saves its noise before it is filled (pytorch#193671)"}
SAMPLES = 2


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def each_tensor(change, tree):
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)


def first_and_second_gradients(operator, sample, around):
    """Gradients of the first and, where there are any, of the second order; None where there is nothing to derive."""
    torch.manual_seed(0)
    start = (sample.input, sample.args, sample.kwargs)
    leaves = each_tensor(lambda t: t.detach().requires_grad_(t.requires_grad), start)
    wanted = [leaf for leaf in tensors(leaves) if leaf.requires_grad]
    generator = torch.Generator().manual_seed(1)

    def noise(like):
        return torch.randn(like.shape, dtype=like.dtype, generator=generator)

    with around():
        inputs, args, kwargs = each_tensor(lambda t: t * 1 if t.requires_grad else t, leaves)
        outputs = [out for out in tensors(operator(inputs, *args, **kwargs)) if out.requires_grad]
        if not wanted or not outputs or any(out.layout != torch.strided or out.is_nested for out in outputs):
            return None
        seeds = [noise(out).requires_grad_() for out in outputs]
        second = operator.supports_gradgrad
        first = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True, create_graph=second)
    again = [grad for grad in first if grad is not None and grad.requires_grad]
    if not again:
        return first
    return [*first, *torch.autograd.grad(again, [*wanted, *seeds], [noise(g) for g in again], allow_unused=True)]


def works_plainly(operator, sample):
    try:
        return first_and_second_gradients(operator, sample, nullcontext)
    except (RuntimeError, NotImplementedError):  # not differentiable for this sample, or not on this build
        return None


def operators(dtype):
    return [op for op in op_db if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["float32", "complex64"])
def test_gradients_of_every_operator_are_bitwise_equal(pair, same_bits, dtype):
    compared, different = 0, []
    for operator in operators(dtype):
        if operator.name in UNREPAIRABLE:
            continue
        for sample in islice(operator.sample_inputs("cpu", dtype, requires_grad=True), SAMPLES):
            plain = works_plainly(operator, sample)
            if plain is None:
                continue
            hooked = first_and_second_gradients(operator, sample, pair.hooks)
            if not same_bits(plain, hooked) and same_bits(plain, works_plainly(operator, sample)):
                different.append(operator.formatted_name)
            compared += 1
    assert different == []
    assert compared > {torch.float32: 1000, torch.complex64: 500}[dtype]
    assert sum(pair.copied.values()) > 3 * compared
