"""Operators that do the same to each element."""

import paddle

from .rows import b, c, call, i, many, one, only, positive, x

_UNARY = [
    *many("paddle.abs paddle.asinh paddle.atan paddle.ceil paddle.cos paddle.cosh paddle.deg2rad paddle.erf", x()),
    *many("paddle.exp paddle.expm1 paddle.floor paddle.frac paddle.nan_to_num paddle.neg paddle.rad2deg", x()),
    *many("paddle.round paddle.sign paddle.sin paddle.sinc paddle.sinh paddle.square paddle.tan paddle.tanh", x()),
    *many("paddle.trunc paddle.i0 paddle.sigmoid", x()),
    *many("paddle.acos paddle.asin paddle.atanh paddle.erfinv", x(low=-0.9, high=0.9, edges=(-1.0, 1.0))),
    *many("paddle.digamma paddle.lgamma paddle.log paddle.log10 paddle.log2 paddle.sqrt", positive()),
    *many("paddle.rsqrt paddle.reciprocal paddle.gammaln", positive()),
    one("paddle.acosh", x(low=1.125, high=3.0, edges=(1.0, 3.0))),
    one("paddle.log1p", x(low=-0.5, high=2.0, edges=(-1.0, 2.0))),
    one("paddle.logit", x(low=0.1, high=0.9, edges=(0.0, 1.0))),
    one("paddle.multigammaln", x(low=1.5, high=4.0), p=2),
    one("paddle.polygamma", positive(), n=1),
]

_MORE_UNARY = [
    *many("paddle.i0e paddle.i1 paddle.i1e paddle.sgn paddle.negative paddle.positive paddle.clone paddle.assign", x()),
    *many("paddle.angle paddle.conj paddle.stanh", x()),
    *only("complex64 complex128", *many("paddle.real paddle.imag", x())),
    one("paddle.clip", x(), min=-0.5, max=0.75),
    one("paddle.clamp", x(), min=-0.5, max=0.75),
    one("paddle.scale", x(), scale=2.5, bias=0.5),
    one("paddle.increment", x(1), value=2.0),
    *(one("paddle.pow", positive(), y=exponent) for exponent in (0.5, 2, 2.5, -1)),
    one("paddle.nan_to_num", x(), nan=1.0, posinf=2.0),
    one("paddle.cast", x(), dtype="float64"),
    one("paddle.round", x(), decimals=1),
]

_IN_PLACE = [
    one(f"{row.name}_", *row.inputs, **row.attributes)
    for row in [*_UNARY, *_MORE_UNARY]
    if hasattr(paddle, f"{row.name.removeprefix('paddle.')}_") and row.dtypes is None
] + [one(f"Tensor.{name}_", positive()) for name in ("exp", "sqrt", "rsqrt", "ceil", "floor", "round", "reciprocal")]

_BINARY = [
    *many("paddle.add paddle.subtract paddle.multiply paddle.maximum paddle.minimum paddle.fmax paddle.fmin", x(), x()),
    *many("paddle.atan2 paddle.hypot paddle.copysign paddle.logaddexp paddle.mul paddle.sub", x(), x()),
    *many("paddle.divide paddle.div paddle.true_divide paddle.remainder paddle.mod paddle.floor_mod", x(), positive()),
    one("paddle.pow", positive(), x()),
    one("paddle.pow", positive(3, 4), x(4)),
    one("paddle.add", x(3, 4), x(4)),
    one("paddle.multiply", x(3, 4), x(3, 1)),
    one("paddle.divide", x(3, 4), positive(4)),
    one("paddle.maximum", x(3, 4), x(4)),
    one("paddle.ldexp", x(), i(3, 4, high=4)),
    one("paddle.lerp", x(), x(), weight=0.25),
    one("paddle.lerp", x(), x(), x()),
    one("paddle.heaviside", x(), x()),
    *many("paddle.gammainc paddle.gammaincc", c(low=0.5, high=2.0), positive()),
    *many("paddle.complex paddle.polar", positive(), x()),
    one("paddle.where", b(), x(), x()),
    call(
        "paddle.multiplex",
        lambda r, s, t, k: paddle.multiplex([r, s, t], k.astype("int32")),
        x(),
        x(),
        x(),
        i(3, 1, high=3),
    ),
    one("paddle.add_n", [x(), x(), x()]),
    one("F.swiglu", x(), x()),
    one("F.square_error_cost", x(), x()),
]

_BINARY_IN_PLACE = [
    *many("paddle.add_ paddle.subtract_ paddle.multiply_ paddle.copysign_ paddle.hypot_ paddle.sub_", x(), x()),
    *many("paddle.divide_ paddle.div_ paddle.remainder_ paddle.mod_ paddle.floor_mod_", x(), positive()),
    one("paddle.pow_", positive(), y=2.5),
    one("paddle.lerp_", x(), x(), weight=0.25),
    one("paddle.ldexp_", x(), i(3, 4, high=4)),
    one("paddle.clip_", x(), min=-0.5, max=0.75),
    one("paddle.scale_", x(), scale=2.5),
    one("paddle.where_", b(), x(), x()),
    one("paddle.cast_", x(), dtype="float64"),
]
_BINARY_IN_PLACE = [row for row in _BINARY_IN_PLACE if hasattr(paddle, row.name.removeprefix("paddle."))]

_OPERATORS = [
    *many("operator.add operator.sub operator.mul", x(), x()),
    *many("operator.truediv operator.mod", x(), positive()),
    one("operator.pow", positive(), x()),
    *many("operator.neg operator.abs operator.pos", x()),
    *many("operator.iadd operator.isub operator.imul", x(), x()),
    one("operator.itruediv", x(), positive()),
    call("t+1.5", lambda t: t + 1.5, x()),
    call("1.5-t", lambda t: 1.5 - t, x()),
    call("t*1.5", lambda t: t * 1.5, x()),
    call("t/1.5", lambda t: t / 1.5, x()),
    call("1.5/t", lambda t: 1.5 / t, positive()),
    call("t**0.5", lambda t: t**0.5, positive()),
    call("t**2", lambda t: t**2, x()),
    call("t**3", lambda t: t**3, x()),
    call("2**t", lambda t: 2.0**t, x()),
    call("t%1.5", lambda t: t % 1.5, x()),
    call("t*t", lambda t: t * t, x()),
    call("t*=t", lambda t: t.multiply_(t), x()),
]

_ACTIVATIONS = [
    *many("F.celu F.elu F.gelu F.hardshrink F.hardtanh F.hardsigmoid F.hardswish F.leaky_relu F.log_sigmoid", x()),
    *many(
        "F.relu F.relu6 F.selu F.sigmoid F.silu F.softplus F.softshrink F.softsign F.swish F.mish", x(low=-4, high=7)
    ),
    *many("F.tanh F.tanhshrink F.thresholded_relu F.logsigmoid F.rrelu F.swiglu F.glu", x(low=-2, high=3)),
    *many("F.softmax F.log_softmax", x()),
    *many("F.softmax F.log_softmax F.glu", x(4, 6), axis=0),
    one("F.gelu", x(), approximate=True),
    one("F.rrelu", x(), training=False),
    one("F.gumbel_softmax", x()),
    one("F.gumbel_softmax", x(), hard=True),
    one("F.maxout", x(2, 6, 3, 3), groups=3),
    one("F.prelu", x(4, 3, 32), x(1)),
    one("F.prelu", x(4, 3, 32), x(3)),
    *many("F.elu_ F.hardtanh_ F.leaky_relu_ F.relu_ F.softmax_ F.tanh_ F.thresholded_relu_", x()),
    *many("F.dropout F.alpha_dropout F.feature_alpha_dropout", x(), p=0.4),
    one("F.dropout", x(), p=0.4, mode="downscale_in_infer"),
    one("F.dropout", x(), p=0.4, axis=0),
    one("F.dropout1d", x(2, 3, 4), p=0.4),
    one("F.dropout2d", x(2, 3, 4, 4), p=0.4),
    one("F.dropout3d", x(2, 3, 4, 4, 2), p=0.4),
    one("F.label_smooth", x(low=0.0, high=1.0)),
]

ROWS = [*_UNARY, *_MORE_UNARY, *_IN_PLACE, *_BINARY, *_BINARY_IN_PLACE, *_OPERATORS, *_ACTIVATIONS]
