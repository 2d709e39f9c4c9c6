"""Rules for arithmetic, element by element, and for element types."""

import torch

from tensorstash.backends.torch.recipes.rule import Rule, attributes, made_dtype, saved

CAST = Rule("cast", "ToCopyBackward0", saved(""), lambda dtype, x: x.to(dtype), made_dtype)

ARITHMETIC = (
    Rule("mul", "MulBackward0", saved("self", "other"), torch.mul),
    Rule("div", "DivBackward0", saved("self", "other"), torch.div),
    Rule("add", "AddBackward0", saved("", ""), lambda alpha, x, y: torch.add(x, y, alpha=alpha), attributes("alpha")),
    Rule("sub", "SubBackward0", saved("", ""), lambda alpha, x, y: torch.sub(x, y, alpha=alpha), attributes("alpha")),
    Rule("neg", "NegBackward0", saved(""), torch.neg),
    Rule("pow", "PowBackward0", saved("self"), lambda n, x: torch.pow(x, n), attributes("exponent"), weight=4),
    Rule("rsqrt", "RsqrtBackward0", saved(""), torch.rsqrt),
    CAST,
    Rule("clone", "CloneBackward0", saved(""), lambda x: x.clone(memory_format=torch.contiguous_format)),
)
