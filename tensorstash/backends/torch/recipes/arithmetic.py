"""Rules for arithmetic, element by element, and for element types."""

from typing import Any

import torch
from torch import Tensor

from tensorstash.backends.torch.recipes.rule import Rule, attributes, made_dtype, saved


def _add(alpha: Any, one: Any, other: Any) -> Tensor:
    return torch.add(one, other, alpha=alpha)


def _sub(alpha: Any, one: Any, other: Any) -> Tensor:
    return torch.sub(one, other, alpha=alpha)


def _pow(exponent: Any, base: Tensor) -> Tensor:
    return torch.pow(base, exponent)


def _cast(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype)


def _clone(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


CAST = Rule("cast", "ToCopyBackward0", saved(""), _cast, made_dtype)

ARITHMETIC = (
    Rule("mul", "MulBackward0", saved("self", "other"), torch.mul),
    Rule("div", "DivBackward0", saved("self", "other"), torch.div),
    Rule("add", "AddBackward0", saved("", ""), _add, attributes("alpha")),
    Rule("sub", "SubBackward0", saved("", ""), _sub, attributes("alpha")),
    Rule("neg", "NegBackward0", saved(""), torch.neg),
    Rule("pow", "PowBackward0", saved("self"), _pow, attributes("exponent"), weight=4),
    Rule("rsqrt", "RsqrtBackward0", saved(""), torch.rsqrt),
    CAST,
    Rule("clone", "CloneBackward0", saved(""), _clone),
)
