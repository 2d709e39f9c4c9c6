"""Every operation; importing this fills the dispatch table."""

from tensorstash.reference import inplace  # noqa: F401  (it registers what tensor methods call)
from tensorstash.reference.autograd import engine  # noqa: F401  (the same)
from tensorstash.reference.ops.elementwise import (
    absolute,
    add,
    astype,
    clone,
    conj,
    contiguous,
    div,
    eq,
    exp,
    ge,
    gelu,
    gt,
    imag,
    le,
    log,
    lt,
    maximum,
    mul,
    neg,
    power,
    real,
    relu,
    sigmoid,
    sign,
    sqrt,
    sub,
    tanh,
    to,
    where,
)  # fmt: skip
from tensorstash.reference.ops.indexing import getitem, setitem
from tensorstash.reference.ops.linalg import matmul
from tensorstash.reference.ops.neural import (
    attention,
    avg_pool2d,
    batch_norm,
    conv2d,
    cross_entropy,
    dropout,
    embedding,
    layer_norm,
    log_softmax,
    max_pool2d,
    normalise,
    softmax,
)  # fmt: skip
from tensorstash.reference.ops.reduction import argmax, logsumexp, reduce_max, reduce_mean, reduce_sum, sum_to, variance
from tensorstash.reference.ops.shape import (
    as_layout,
    as_strided,
    concat,
    expand,
    narrow,
    permute,
    reshape,
    split,
    squeeze,
    stack,
    transpose,
    unsqueeze,
    view,
)  # fmt: skip

__all__ = [
    "absolute", "add", "argmax", "as_layout", "as_strided", "astype", "attention", "avg_pool2d", "batch_norm", "clone",
    "concat", "conj", "contiguous", "conv2d", "cross_entropy", "div", "dropout", "embedding", "eq", "exp", "expand",
    "ge", "gelu", "getitem", "gt", "imag", "layer_norm", "le", "log", "log_softmax", "logsumexp", "lt", "matmul",
    "max_pool2d", "maximum", "mul", "narrow", "neg", "normalise", "permute", "power", "real", "reduce_max",
    "reduce_mean", "reduce_sum", "relu", "reshape", "setitem", "sigmoid", "sign", "softmax", "split", "sqrt",
    "squeeze", "stack", "sub", "sum_to", "tanh", "to", "transpose", "unsqueeze", "variance", "view", "where",
]  # fmt: skip
