"""Gradients of whole models against PaddlePaddle on identical weights."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tensorstash.reference import Tensor, grad, nn, ops, tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing paddle looks for a compiler cache
    paddle = pytest.importorskip("paddle")
F = paddle.nn.functional

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def paddle_weights(model: nn.Module) -> dict[str, Any]:
    weights = {name: paddle.to_tensor(p.detach().numpy()) for name, p in model.named_parameters()}
    for weight in weights.values():
        weight.stop_gradient = False
    return weights


def assert_gradients_agree(model: nn.Module, loss: Tensor, weights: dict[str, Any], paddle_loss: Any) -> None:
    np.testing.assert_allclose(loss.item(), paddle_loss.item(), **TIGHT)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = grad(loss, parameters)
    expected = paddle.grad(paddle_loss, [weights[name] for name in names])
    for name, mine, theirs in zip(names, found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), err_msg=name, **TIGHT)


def paddle_language_model(w: dict[str, Any], indices: Any, blocks: int, heads: int) -> Any:
    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, x.shape[-1], w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    batch, tokens = indices.shape
    x = F.embedding(indices, w["token.weight"]) + w["position.weight"][:tokens]
    future = paddle.triu(paddle.full([tokens, tokens], -np.inf, "float64"), 1)
    for index in range(blocks):
        block = f"blocks.{index}"
        parts = linear(norm(x, f"{block}.attention_norm"), f"{block}.attention.project").chunk(3, -1)
        q, k, v = (part.reshape([batch, tokens, heads, -1]).transpose([0, 2, 1, 3]) for part in parts)
        scores = F.softmax(q @ k.transpose([0, 1, 3, 2]) / q.shape[-1] ** 0.5 + future)
        mixed = (scores @ v).transpose([0, 2, 1, 3]).reshape([batch, tokens, -1])
        x = x + linear(mixed, f"{block}.attention.merge")
        hidden = F.gelu(linear(norm(x, f"{block}.feed_norm"), f"{block}.feed.layers.0"), approximate=True)
        x = x + linear(hidden, f"{block}.feed.layers.2")
    return norm(x, "norm") @ w["token.weight"].T


def test_transformer_gradients_agree(language_model: tuple[nn.TransformerLM, np.ndarray]) -> None:
    model, indices = language_model
    loss = ops.cross_entropy(model(tensor(indices)), tensor(indices))
    weights, labels = paddle_weights(model), paddle.to_tensor(indices)
    logits = paddle_language_model(weights, labels, len(model.blocks), model.blocks[0].attention.heads)
    paddle_loss = F.cross_entropy(logits.reshape([-1, logits.shape[-1]]), labels.reshape([-1]))
    assert_gradients_agree(model, loss, weights, paddle_loss)


def test_conv_net_gradients_agree(conv_net: tuple[nn.Module, np.ndarray, np.ndarray]) -> None:
    model, images, labels = conv_net
    model.train()
    loss = ops.cross_entropy(model(tensor(images)), tensor(labels))
    w = paddle_weights(model)
    buffers = [paddle.zeros([4], "float64"), paddle.ones([4], "float64")]
    x = F.conv2d(paddle.to_tensor(images), w["first.weight"], w["first.bias"], stride=2, padding=1)
    x = F.batch_norm(x, *buffers, w["norm.weight"], w["norm.bias"], training=True)
    x = F.conv2d(F.max_pool2d(F.relu(x), 2), w["second.weight"], w["second.bias"])
    # Not avg_pool2d: in its backward Paddle 3.3.1 rounds 1/9 to single precision.
    x = F.gelu(x, approximate=True).mean([2, 3]) @ w["head.weight"].T + w["head.bias"]
    assert_gradients_agree(model, loss, w, F.cross_entropy(x, paddle.to_tensor(labels)))
