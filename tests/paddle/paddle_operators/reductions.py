"""Operators that combine elements along axes, and scans along one."""

from .rows import call, many, one, positive, x

_PLAIN = "sum mean max min amax amin prod logsumexp std var median nanmedian nansum nanmean norm"

_REDUCTIONS = [
    row
    for name in _PLAIN.split()
    if name != "norm"
    for row in (
        one(f"paddle.{name}", x()),
        one(f"paddle.{name}", x(3, 4, 2), axis=1),
        one(f"paddle.{name}", x(3, 4, 2), axis=-1, keepdim=True),
    )
]

_MORE = [
    one("paddle.sum", x(3, 4, 2), axis=[0, 2]),
    one("paddle.mean", x(3, 4, 2), axis=[0, 2]),
    one("paddle.amax", x(3, 4, 2), axis=[0, 2]),
    one("paddle.amin", x(3, 4, 2), axis=[0, 2]),
    one("paddle.max", x(3, 4, 2), axis=[0, 2]),
    one("paddle.std", x(3, 4, 2), axis=1, unbiased=False),
    *(one("paddle.quantile", x(), q=q, axis=1) for q in (0.3, [0.25, 0.5])),
    one("paddle.nanquantile", x(), q=0.3, axis=1),
    one("paddle.median", x(3, 4), axis=1, mode="min"),
    one("paddle.nanmedian", x(3, 4), axis=1, mode="min"),
    one("paddle.mode", x(), axis=1),
    one("paddle.kthvalue", x(), k=2),
    one("paddle.kthvalue", x(), k=2, axis=0),
    one("paddle.topk", x(), k=2),
    one("paddle.topk", x(), k=2, axis=0, largest=False),
    *many("paddle.sort paddle.cummax paddle.cummin paddle.cumsum paddle.logcumsumexp", x()),
    *many("paddle.sort paddle.cummax paddle.cummin paddle.cumsum paddle.logcumsumexp", x(), axis=0),
    one("paddle.sort", x(), descending=True),
    one("paddle.msort", x()),
    one("paddle.cumprod", x(), dim=1),
    one("paddle.cumprod_", x(), dim=1),
    one("paddle.cumsum_", x(), axis=1),
    one("paddle.trapezoid", x()),
    one("paddle.trapezoid", x(), x(made=lambda a: a.cumsum(-1))),
    one("paddle.cumulative_trapezoid", x()),
    *many("paddle.diff paddle.trace", x()),
    one("paddle.diff", x(3, 5), n=2),
    one("paddle.reduce_as", x(3, 4), x(4)),
    one("paddle.dist", x(), x()),
    *(one("paddle.dist", x(), x(), p=p) for p in (0, 1, 3, float("inf"))),
    *(one("linalg.norm", x(), p=p) for p in (1, 2, 3, float("inf"), float("-inf"), "fro", "nuc")),
    *(one("linalg.norm", x(), p=p, axis=1) for p in (0, 1, 2, 2.5, float("inf"), float("-inf"))),
    *(one("linalg.vector_norm", x(), p=p) for p in (1.0, 2.0, 3.0, float("inf"), float("-inf"))),
    *(one("linalg.vector_norm", x(), p=p, axis=1) for p in (1.0, 2.0, float("inf"))),
    *(one("linalg.matrix_norm", x(), p=p) for p in ("fro", "nuc", 1, 2, float("inf"), -1)),
    *many("F.normalize", x()),
    one("F.normalize", x(), p=3, axis=0),
    one("F.cosine_similarity", x(), x()),
    one("F.pairwise_distance", x(), x()),
    one("F.pairwise_distance", x(), x(), p=1.0),
    one("paddle.cdist", x(3, 4), x(5, 4)),
    *(one("paddle.cdist", x(3, 4), x(5, 4), p=p) for p in (1.0, 3.0, float("inf"))),
    one("paddle.pdist", x(4, 3)),
    one("paddle.renorm", x(2, 3, 4), p=2.0, axis=1, max_norm=1.0),
    one("paddle.renorm_", x(2, 3, 4), p=2.0, axis=1, max_norm=1.0),
    call("Tensor.max(axis)", lambda t: t.max(axis=0), x()),
    call("Tensor.softmax-max", lambda t: t.amax(1), positive()),
]

ROWS = [*_REDUCTIONS, *_MORE]
