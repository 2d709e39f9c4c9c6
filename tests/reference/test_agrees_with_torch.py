"""Gradients of whole models, and of single operations, against PyTorch on identical weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorstash.reference import Tensor, grad, nn, ops, tensor

torch = pytest.importorskip("torch")
F = torch.nn.functional

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def torch_weights(model: nn.Module) -> dict[str, Any]:
    return {name: torch.tensor(p.detach().numpy(), requires_grad=True) for name, p in model.named_parameters()}


def assert_gradients_agree(model: nn.Module, loss: Tensor, weights: dict[str, Any], torch_loss: Any) -> None:
    np.testing.assert_allclose(loss.item(), torch_loss.item(), **TIGHT)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = grad(loss, parameters)
    expected = torch.autograd.grad(torch_loss, [weights[name] for name in names])
    for name, mine, theirs in zip(names, found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), err_msg=name, **TIGHT)


def torch_language_model(w: dict[str, Any], indices: Any, blocks: int, heads: int) -> Any:
    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["token.weight"][indices] + w["position.weight"][: indices.shape[1]]
    for index in range(blocks):
        block = f"blocks.{index}"
        parts = linear(norm(x, f"{block}.attention_norm"), f"{block}.attention.project").chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{block}.attention.merge")
        hidden = F.gelu(linear(norm(x, f"{block}.feed_norm"), f"{block}.feed.layers.0"), approximate="tanh")
        x = x + linear(hidden, f"{block}.feed.layers.2")
    return norm(x, "norm") @ w["token.weight"].T


def test_transformer_gradients_agree(language_model: tuple[nn.TransformerLM, np.ndarray]) -> None:
    model, indices = language_model
    loss = ops.cross_entropy(model(tensor(indices)), tensor(indices))
    weights, labels = torch_weights(model), torch.tensor(indices)
    logits = torch_language_model(weights, labels, len(model.blocks), model.blocks[0].attention.heads)
    assert_gradients_agree(model, loss, weights, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize("training", [True, False])
def test_conv_net_gradients_agree(conv_net: tuple[nn.Module, np.ndarray, np.ndarray], training: bool) -> None:
    model, images, labels = conv_net
    model.train(training)
    buffers = [torch.tensor(b.numpy().copy()) for b in (model.norm.running_mean, model.norm.running_variance)]
    loss = ops.cross_entropy(model(tensor(images)), tensor(labels))
    w = torch_weights(model)
    x = F.conv2d(torch.tensor(images), w["first.weight"], w["first.bias"], stride=2, padding=1)
    x = F.batch_norm(x, *buffers, w["norm.weight"], w["norm.bias"], training=training)
    x = F.conv2d(F.max_pool2d(x.relu(), 2), w["second.weight"], w["second.bias"])
    x = F.linear(F.avg_pool2d(F.gelu(x, approximate="tanh"), 3).flatten(1), w["head.weight"], w["head.bias"])
    assert_gradients_agree(model, loss, w, F.cross_entropy(x, torch.tensor(labels)))
    np.testing.assert_allclose(model.norm.running_mean.numpy(), buffers[0].numpy(), **TIGHT)
    np.testing.assert_allclose(model.norm.running_variance.numpy(), buffers[1].numpy(), **TIGHT)


PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "complex": (lambda z: (z * z.conj() * z).exp().real(), lambda z: (z * z.conj() * z).exp().real),
    "complex power": (lambda z: (z**3 / (z + 2)).log().imag(), lambda z: (z**3 / (z + 2)).log().imag),
}


@pytest.mark.parametrize("name", PAIRS)
def test_complex_gradients_follow_the_same_convention(name: str) -> None:
    mine, theirs = PAIRS[name]
    values = np.random.default_rng(0).normal(size=5) + 1j * np.random.default_rng(1).normal(size=5)
    z, t = tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    (expected,) = torch.autograd.grad(theirs(t).sum(), t)
    np.testing.assert_allclose(grad(mine(z).sum(), z)[0].numpy(), expected.numpy(), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_elementwise_results_in_narrow_types_agree_bit_for_bit(dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    x = tensor(values, "float32").astype(dtype)
    t = torch.tensor(values.astype(np.float32)).to(getattr(torch, dtype))
    for mine, theirs in ((x * x, t * t), (x + 0.5, t + 0.5), (x / (x * x + 1), t / (t * t + 1)), (x.relu(), t.relu())):
        bits = theirs.view(torch.int32 if dtype == "float32" else torch.int16).numpy()
        np.testing.assert_array_equal(mine.host_bits().view(bits.dtype), bits)


def test_overlapping_views_share_gradients_alike() -> None:
    values = np.arange(5.0)
    x, t = tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    (mine,) = grad(((x * 1).as_strided((3, 3), (1, 1)) ** 2).sum(), x)
    (theirs,) = torch.autograd.grad(((t * 1).as_strided((3, 3), (1, 1)) ** 2).sum(), t)
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_inplace_history_through_views_agrees() -> None:
    values = np.arange(1.0, 7.0).reshape(2, 3)

    def chain(x: Any, transpose: Callable[[Any], Any]) -> Any:
        a = x * 2
        row, column = a[0], transpose(a)[1]
        row.mul_(column[1].clone())
        column.add_(1.0)
        a[1] = a[0].clone() * x[1]
        return (a * row + column.sum()).sum()

    x, t = tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    (mine,) = grad(chain(x, lambda a: a.transpose(0, 1)), x)
    (theirs,) = torch.autograd.grad(chain(t, lambda a: a.transpose(0, 1)), t)
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-14)
