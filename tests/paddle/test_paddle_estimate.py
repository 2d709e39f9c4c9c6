"""What a model of PaddlePaddle saves is said from a few rows of its batch."""

from typing import Any

import paddle
import pytest

import tensorstash as ts


class Decoder(paddle.nn.Layer):  # type: ignore[misc,name-defined]
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(211, 64)
        self.blocks = paddle.nn.Sequential(
            *[paddle.nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", normalize_before=True) for _ in range(2)]
        )
        self.head = paddle.nn.Linear(64, 211)

    def forward(self, tokens: Any) -> Any:
        """Return scores."""
        return self.head(self.blocks(self.embedding(tokens)))


def test_what_is_said_is_what_a_step_saves() -> None:
    model = Decoder()
    tokens = paddle.randint(0, 211, [16, 32])
    found = ts.estimate(model, tokens)
    assert not found.is_imagined
    wrapped = ts.wrap(model, "disk_spill", budget="1GiB", min_bytes=0)
    for _ in range(2):
        model(tokens).sum().backward()
    assert found.nbytes == pytest.approx(wrapped.stats().planned["kept"].nbytes, rel=0.05)
    wrapped.remove()
    assert "blocks.0.linear1" in {row.module for row in found.rows}
