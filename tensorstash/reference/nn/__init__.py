"""Modules and layers."""

from tensorstash.reference.nn.layers import (
    GELU,
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    ReLU,
    Sequential,
)
from tensorstash.reference.nn.module import Module
from tensorstash.reference.nn.transformer import MultiheadAttention, TransformerBlock, TransformerLM
from tensorstash.reference.tensor import Parameter

__all__ = [
    "GELU",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiheadAttention",
    "Parameter",
    "ReLU",
    "Sequential",
    "TransformerBlock",
    "TransformerLM",
]
