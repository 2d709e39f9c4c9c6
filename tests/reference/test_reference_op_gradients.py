"""Every operation against finite differences, to second order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tensorstash.reference import OPERATIONS, Generator, Node, Tensor, check_grads, enable_grad, grad, ops, tensor
from tensorstash.reference.autograd.primitive import Primitive, ViewPrimitive
from tensorstash.reference.ops import neural


def real(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> Tensor:
    return tensor(np.random.default_rng(seed).uniform(low, high, shape), requires_grad=True)


def complex_(*shape: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return tensor(rng.uniform(0.5, 1.5, shape) + 1j * rng.uniform(0.5, 1.5, shape), requires_grad=True)


MASK = tensor([[True, False, True], [False, False, True]])
ROWS = tensor([0, 2, 2, 1])
POSITIVE = {"low": 0.5, "high": 2.0}


def inplace_chain(x: Tensor, y: Tensor) -> Tensor:
    a = x * 2
    first, second = a[0], a[:, 1:]
    first.mul_(y)
    second.add_(a[:, :2].clone()).exp_()
    a.copy_(a.clone() * y)
    a[1] = y * y
    return a * first.unsqueeze(0) + second.sum()


def index_write(x: Tensor, y: Tensor) -> Tensor:
    a = x * x
    a[tensor([2, 0])] = y
    a[a > 10] = 3.0
    return a * x


Case = tuple[Callable[..., Tensor], Sequence[Tensor]]
CASES: dict[str, Case] = {
    "add": (lambda a, b: a + b + 2, (real(2, 3), real(3, seed=1))),
    "sub": (lambda a, b: 1 - (a - b), (real(2, 1), real(1, 3, seed=1))),
    "mul": (lambda a, b: a * b * 3, (real(2, 3), real(3, seed=1))),
    "mul by itself": (lambda a: a * a, (real(3),)),
    "mul complex": (lambda a, b: a * b, (complex_(3), complex_(3, seed=1))),
    "mul mixed": (lambda a, b: a * b, (real(3), complex_(3, seed=1))),
    "div": (lambda a, b: a / b, (real(2, 3), real(3, **POSITIVE))),
    "div number": (lambda a: 2 / a + a / 4, (real(3, **POSITIVE),)),
    "div complex": (lambda a, b: a / b, (complex_(2), complex_(2, seed=1))),
    "neg": (lambda a: -a * a, (real(3),)),
    "pow number": (lambda a: a**3 + a**2 + a**0 + a**-1.5, (real(3, **POSITIVE),)),
    "pow number of negative": (lambda a: a**2 + a**3, (real(4),)),
    "pow tensor": (lambda a, b: a**b, (real(2, 3, **POSITIVE), real(3, seed=1))),
    "pow of number": (lambda b: 2.5**b, (real(3),)),
    "pow complex": (lambda a, b: a**b, (complex_(2), complex_(2, seed=1))),
    "exp": (lambda a: a.exp(), (real(3),)),
    "exp complex": (lambda a: a.exp(), (complex_(2),)),
    "log": (lambda a: a.log(), (real(3, **POSITIVE),)),
    "log complex": (lambda a: a.log(), (complex_(2),)),
    "sqrt": (lambda a: a.sqrt(), (real(3, **POSITIVE),)),
    "sqrt complex": (lambda a: a.sqrt(), (complex_(2),)),
    "tanh": (lambda a: a.tanh(), (real(3),)),
    "tanh complex": (lambda a: a.tanh(), (complex_(2),)),
    "sigmoid": (lambda a: a.sigmoid(), (real(3),)),
    "relu": (lambda a: (a * a * a).relu(), (real(6),)),
    "gelu": (ops.gelu, (real(4, low=-2, high=2),)),
    "abs": (lambda a: a.abs() * a, (real(4),)),
    "maximum": (lambda a, b: ops.maximum(a * a, b), (real(2, 3), real(3, seed=1))),
    "maximum with number": (lambda a: ops.maximum(a * a, 0.2), (real(6),)),
    "where": (lambda a, b: ops.where(MASK, a * a, b) * 2, (real(2, 3), real(3, seed=1))),
    "where number": (lambda a: ops.where(MASK, a * a, 1.0), (real(2, 3),)),
    "conj": (lambda a: a.conj() * a * a, (complex_(2),)),
    "real and imag": (lambda a: (a * a).real() * a.imag(), (complex_(2),)),
    "cast": (lambda a: a.astype("complex128") * 1j * a, (real(2),)),
    "clone": (lambda a: a.swap_last().clone() ** 2, (real(2, 3),)),
    "contiguous": (lambda a: a.swap_last().contiguous() ** 2, (real(2, 3),)),
    "to": (lambda a: (a.to("sim:0") * a.to("sim:0")).to("cpu"), (real(3),)),
    "sum": (lambda a: a.sum(1) ** 2, (real(2, 3),)),
    "sum keepdims": (lambda a: a.sum((0, -1), keepdims=True) * a, (real(2, 2, 2),)),
    "mean": (lambda a: a.mean() * a.mean(0), (real(2, 3),)),
    "max": (lambda a: (a * a).max(1) * a.max(), (real(2, 3),)),
    "logsumexp": (lambda a: ops.logsumexp(a, 1), (real(2, 3),)),
    "variance": (lambda a: ops.variance(a, 1), (real(2, 3),)),
    "sum_to": (lambda a: a.sum_to((1, 3)) ** 2, (real(2, 2, 3),)),
    "matmul": (lambda a, b: a @ b, (real(2, 3), real(3, 2, seed=1))),
    "matmul batched": (lambda a, b: a @ b, (real(2, 1, 2, 2), real(3, 2, 1, seed=1))),
    "matmul vectors": (
        lambda a, b, c: (a @ b) * (b @ c).sum() * (c @ c),
        (real(2), real(2, 3, seed=1), real(3, seed=2)),
    ),
    "matmul complex": (lambda a, b: a @ b, (complex_(2, 2), complex_(2, 2, seed=1))),
    "permute": (lambda a: a.permute(2, 0, 1) ** 2, (real(2, 2, 3),)),
    "transpose": (lambda a: a.transpose(0, -1) ** 2, (real(2, 3),)),
    "expand": (lambda a: a.expand(2, 3, -1) ** 2, (real(3, 1),)),
    "reshape": (lambda a: a.swap_last().reshape(-1, 2) ** 2, (real(2, 2, 2),)),
    "view": (lambda a: a.view(3, 2) ** 2, (real(2, 3),)),
    "squeeze": (lambda a: a.unsqueeze(1).squeeze(0) ** 2, (real(1, 3),)),
    "as_strided": (lambda a: a.as_strided((2, 2), (2, 1), 8) ** 2, (real(5),)),
    "as_strided overlapping": (lambda a: a.as_strided((3, 3), (1, 1)) ** 2, (real(5),)),
    "as_strided of transposed": (lambda a: (a * 1).swap_last().as_strided((4,), (1,)) ** 2, (real(2, 3),)),
    "as_strided of expanded": (lambda a: (a * 1).expand(2, 3).as_strided((2, 2), (0, 1)) ** 2, (real(1, 3),)),
    "basic index": (lambda a: a[1, ..., None, ::2] ** 2 + a[-1, 0, 0], (real(2, 2, 3),)),
    "integer index": (lambda a: a[ROWS] ** 2, (real(3, 2),)),
    "mixed index": (lambda a: a[:, ROWS, 1] ** 2, (real(2, 3, 2),)),
    "mask index": (lambda a: a[MASK] ** 2, (real(2, 3),)),
    "index write": (index_write, (real(3, 2), real(2, 2, seed=1))),
    "concat": (lambda a, b: ops.concat([a, b, a], axis=1) ** 2, (real(2, 1), real(2, 2, seed=1))),
    "stack": (lambda a, b: ops.stack([a, b], axis=1) ** 2, (real(2), real(2, seed=1))),
    "split": (lambda a: a.split(2, axis=1)[0] * a.split(2, axis=1)[1], (real(2, 4),)),
    "softmax": (lambda a: a.softmax(), (real(2, 3),)),
    "softmax over columns": (lambda a: a.softmax(0), (real(2, 3),)),
    "log_softmax": (lambda a: a.log_softmax(0), (real(2, 3),)),
    "cross_entropy": (lambda a: ops.cross_entropy(a, tensor([0, 2, 1])), (real(3, 3),)),
    "embedding": (lambda w: ops.embedding(w, tensor([[0, 1], [1, 1]])) ** 2, (real(2, 3),)),
    "normalise": (lambda a: ops.normalise(a, axes=(0, 2)), (real(2, 2, 3),)),
    "layer_norm": (ops.layer_norm, (real(2, 3), real(3, seed=1), real(3, seed=2))),
    "dropout": (lambda a: ops.dropout(a * a, 0.4, Generator(0)), (real(2, 3),)),
    "apply_mask": (lambda a: neural.apply_mask(a * a, MASK, scale=2.0), (real(2, 3),)),
    "unfold": (lambda a: neural.unfold(a, size=2, stride=1, padding=1) ** 2, (real(1, 1, 2, 3),)),
    "conv2d": (
        lambda x, w, b: ops.conv2d(x, w, b, stride=2, padding=1),
        (real(2, 2, 3, 4), real(2, 2, 3, 3, seed=1), real(2, seed=2)),
    ),
    "max_pool2d": (lambda a: ops.max_pool2d(a, 2) ** 2, (real(1, 2, 4, 5),)),
    "avg_pool2d": (lambda a: ops.avg_pool2d(a, 2) ** 2, (real(1, 2, 4, 4),)),
    "attention": (
        lambda q, k, v: ops.attention(q, k, v, causal=True),
        (real(3, 2), real(3, 2, seed=1), real(3, 2, seed=2)),
    ),
    "in-place through views": (inplace_chain, (real(2, 3), real(3, seed=1))),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_match_finite_differences_to_second_order(name: str) -> None:
    function, inputs = CASES[name]
    check_grads(function, inputs, order=2, atol=2e-6)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_derivatives_match_finite_differences(training: bool) -> None:
    mean, variance = tensor(np.zeros(2)), tensor(np.ones(2))

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.batch_norm(x, weight, bias, mean, variance, training=training, momentum=0.0)

    check_grads(function, (real(3, 2, 2), real(2, seed=1), real(2, seed=2)))


def test_third_order_of_a_composition() -> None:
    check_grads(lambda a: (a.tanh() * a).sum().exp(), (real(2),), order=3, rtol=1e-4)


def recorded_names(outputs: Sequence[Tensor]) -> set[str]:
    """Give the names of all nodes behind `outputs`."""
    nodes: dict[int, Node[Tensor]] = {}
    stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node.key not in nodes:
            nodes[node.key] = node
            stack += [edge.node for edge in node.edges if edge is not None]
    return {node.name for node in nodes.values()}


def test_every_operation_with_a_formula_is_checked() -> None:
    checked: set[str] = set()
    for function, inputs in CASES.values():
        with enable_grad():
            y = function(*inputs)
            weights = tensor(np.ones(y.shape), device=y.device).requires_grad_()
            first = grad(y, inputs, weights.astype(y.dtype), create_graph=True, allow_unused=True)
            checked |= recorded_names([y, *(g for g in first if g is not None)])
    differentiable = {
        name
        for name, operation in OPERATIONS.items()
        if isinstance(operation, Primitive | ViewPrimitive) and operation.signature.formulas
    }
    assert differentiable - checked == set()


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [(0.0, 2.0, (0.0, 0.0)), (0.0, 0.0, (0.0, 0.0)), (0.0, 1.0, (1.0, 0.0)), (-2.0, 2.0, (-4.0, np.nan))],
)
def test_power_at_the_edge_of_its_domain(base: float, exponent: float, expected: tuple[float, float]) -> None:
    a, b = tensor(base, requires_grad=True), tensor(exponent, requires_grad=True)
    np.testing.assert_array_equal([g.item() for g in grad(a**b, (a, b))], expected)


def test_shared_maximum_shares_its_gradient() -> None:
    x = tensor([1.0, 3.0, 3.0], requires_grad=True)
    x.max().backward()
    assert x.grad.tolist() == [0.0, 0.5, 0.5]


def test_complex_magnitude_says_that_it_has_no_gradient() -> None:
    z = tensor([1 + 1j], requires_grad=True)
    with pytest.raises(NotImplementedError, match="complex magnitude"):
        z.abs().sum().backward()
