"""Operators that move, pick and join elements."""

import numpy as np
import paddle

from .rows import b, c, call, i, many, one, only, x

_ORDER = [
    *many("paddle.flatten paddle.ravel paddle.squeeze paddle.t paddle.atleast_1d paddle.atleast_2d", x()),
    *many("paddle.atleast_3d paddle.matrix_transpose paddle.diag paddle.diagflat paddle.diag_embed", x()),
    *many("paddle.triu paddle.tril paddle.diagonal", x()),
    *many("paddle.triu_ paddle.tril_ paddle.flatten_ paddle.t_ paddle.squeeze_", x()),
    *many("paddle.flip paddle.roll paddle.reverse", x(), axis=1)[:1],
    one("paddle.reverse", x(), axis=[0]),
    one("paddle.flip", x(), axis=[0, 1]),
    one("paddle.roll", x(), shifts=1),
    one("paddle.roll", x(), shifts=[1, 2], axis=[0, 1]),
    one("paddle.rot90", x()),
    one("paddle.reshape", x(), shape=[2, 6]),
    one("paddle.reshape_", x(), shape=[2, 6]),
    one("paddle.view", x(), shape_or_dtype=[2, 6]),
    one("paddle.view_as", x(3, 4), x(4, 3)),
    one("paddle.unflatten", x(), axis=1, shape=[2, 2]),
    *many("paddle.transpose paddle.transpose_", x(2, 3, 4), perm=[2, 0, 1]),
    call("paddle.permute", lambda t: paddle.permute(t, [2, 0, 1]), x(2, 3, 4)),
    one("paddle.moveaxis", x(2, 3, 4), source=0, destination=2),
    call("paddle.swapaxes", lambda t: paddle.swapaxes(t, 0, 2), x(2, 3, 4)),
    call("paddle.swapdims", lambda t: paddle.swapdims(t, 0, 2), x(2, 3, 4)),
    one("paddle.squeeze", x(3, 1, 4), axis=1),
    *many("paddle.unsqueeze paddle.unsqueeze_", x(), axis=1),
    one("paddle.expand", x(1, 4), shape=[3, 4]),
    one("paddle.expand", x(3, 1), shape=[2, 3, 4]),
    one("paddle.expand_as", x(1, 4), c(3, 4)),
    one("paddle.broadcast_to", x(1, 4), shape=[3, 4]),
    one("paddle.broadcast_tensors", [x(1, 4), x(3, 1)]),
    one("paddle.tile", x(), repeat_times=[2, 1]),
    one("paddle.repeat_interleave", x(), repeats=2, axis=1),
    one("paddle.repeat_interleave", x(), i(3, high=3, low=1), axis=0),
    one("paddle.as_strided", x(), shape=[5, 3], stride=[1, 1], offset=8),
    one("paddle.unfold", x(3, 6), axis=1, size=3, step=2),
    one("paddle.crop", x(), shape=[2, 2], offsets=[1, 1]),
    one("paddle.as_complex", x(3, 2)),
    one("paddle.view_as_complex", x(3, 2)),
    *only("complex64 complex128", *many("paddle.as_real paddle.view_as_real", x())),
    one("paddle.vander", x(4)),
    one("paddle.vander", x(4), n=3, increasing=True),
]

_JOIN = [
    *many("paddle.concat paddle.stack paddle.hstack paddle.vstack paddle.row_stack paddle.column_stack", [x(), x()]),
    *many("paddle.cat paddle.concatenate paddle.dstack paddle.block_diag", [x(), x()]),
    one("paddle.concat", [x(3, 2), x(3, 4)], axis=1),
    one("paddle.stack", [x(), x()], axis=1),
    one("paddle.meshgrid", x(3), x(4)),
    one("paddle.cartesian_prod", [x(3), x(4)]),
    one("paddle.combinations", x(4)),
    one("paddle.split", x(), num_or_sections=2, axis=1),
    one("paddle.split", x(), num_or_sections=[1, 3], axis=1),
    one("paddle.chunk", x(), chunks=2, axis=1),
    one("paddle.tensor_split", x(), num_or_indices=2, axis=1),
    one("paddle.hsplit", x(), num_or_indices=2),
    one("paddle.vsplit", x(4, 3), num_or_indices=2),
    one("paddle.dsplit", x(2, 3, 4), num_or_indices=2),
    *many("paddle.unbind paddle.unstack", x()),
    one("paddle.unbind", x(), axis=1),
]

_PICK = [
    one("paddle.slice", x(), axes=[0, 1], starts=[1, 0], ends=[3, 2]),
    one("paddle.strided_slice", x(4, 6), axes=[0, 1], starts=[0, 1], ends=[4, 6], strides=[2, 3]),
    one("paddle.strided_slice", x(4, 6), axes=[1], starts=[5], ends=[0], strides=[-2]),
    one("paddle.narrow", x(), dim=1, start=1, length=2),
    one("paddle.gather", x(), i(5, high=3)),
    one("paddle.gather", x(), i(5, high=4), axis=1),
    one("paddle.gather_nd", x(), i(5, 2, high=3)),
    one("paddle.index_select", x(), i(5, high=3)),
    one("paddle.index_select", x(), i(5, high=4), axis=1),
    one("paddle.index_sample", x(), i(3, 2, high=4)),
    one("paddle.take", x(), i(5, high=12)),
    one("paddle.take_along_axis", x(), i(3, 4, high=3), axis=0),
    one("paddle.take_along_dim", x(), i(3, 4, high=4), dim=1),
    one("paddle.masked_select", x(), b()),
    one("F.embedding", i(3, 4, high=5), x(5, 4)),
    one("F.embedding", i(3, 4, high=5), x(5, 4), padding_idx=1),
    call("t[1]", lambda t: t[1], x()),
    call("t[1:]", lambda t: t[1:], x()),
    call("t[:,1:3]", lambda t: t[:, 1:3], x()),
    call("t[::2]", lambda t: t[::2], x(5, 4)),
    call("t[::-1]", lambda t: t[::-1], x()),
    call("t[...,None]", lambda t: t[..., None], x()),
    call("t[indices]", lambda t, k: t[k], x(), i(5, high=3)),
    call("t[:,indices]", lambda t, k: t[:, k], x(), i(5, high=4)),
    call("t[indices,indices]", lambda t, k, m: t[k, m], x(), i(5, high=3), i(5, high=4)),
    call("t[mask]", lambda t, m: t[m], x(), b()),
]

_PUT = [
    one("paddle.scatter", x(5, 4), i(3, high=5, made=lambda a: np.array([3, 0, 4])), x(3, 4)),
    one("paddle.scatter", x(5, 4), i(3, high=5), x(3, 4), overwrite=False),
    one("paddle.scatter_", x(5, 4), i(3, high=5, made=lambda a: np.array([3, 0, 4])), x(3, 4)),
    one("paddle.scatter_nd", i(3, 1, high=5), x(3, 4), shape=[5, 4]),
    one("paddle.scatter_nd_add", x(5, 4), i(3, 1, high=5), x(3, 4)),
    *(
        one(
            name,
            x(3, 4),
            i(3, 4, high=3, made=lambda a: np.argsort(np.random.RandomState(1).rand(3, 4), 0)),
            x(3, 4),
            axis=0,
            **more,
        )
        for name in ("paddle.put_along_axis",)
        for more in ({}, *({"reduce": kind} for kind in ("add", "mul", "amax", "amin", "mean")))
    ),
    call("paddle.scatter_reduce", lambda t, k, s: paddle.scatter_reduce(t, 0, k, s, "sum"), x(), i(3, 4, high=3), x()),
    call("paddle.scatter_add", lambda t, k, s: paddle.scatter_add(t, 0, k, s), x(), i(3, 4, high=3), x()),
    call("paddle.scatter_add_", lambda t, k, s: paddle.scatter_add_(t, 0, k, s), x(), i(3, 4, high=3), x()),
    *(
        call(
            f"paddle.{name}",
            lambda t, k, s, name=name: getattr(paddle, name)(t, k, 0, s),
            x(5, 4),
            i(3, high=5),
            x(3, 4),
        )
        for name in ("index_add", "index_add_")
    ),
    *(
        call(f"paddle.{name}", lambda t, k, name=name: getattr(paddle, name)(t, k, 0, 0.5), x(5, 4), i(3, high=5))
        for name in ("index_fill", "index_fill_")
    ),
    *(
        call(
            f"paddle.{name}",
            lambda t, k, s, name=name: getattr(paddle, name)(t, (k,), s),
            x(5, 4),
            i(1, high=5),
            x(1, 4),
        )
        for name in ("index_put", "index_put_")
    ),
    call(
        "paddle.index_put(accumulate)",
        lambda t, k, s: paddle.index_put(t, (k,), s, accumulate=True),
        x(5, 4),
        i(3, high=5),
        x(3, 4),
    ),
    *many("paddle.masked_fill paddle.masked_fill_", x(), b(), value=0.5),
    *many("paddle.masked_scatter paddle.masked_scatter_", x(), b(), x(3, 4)),
    one("paddle.slice_scatter", x(3, 4), x(3, 2), axes=[1], starts=[1], ends=[3], strides=[1]),
    one("paddle.select_scatter", x(3, 4), x(4), axis=0, index=1),
    one("paddle.diagonal_scatter", x(4, 4), x(4)),
    call("paddle.fill_diagonal_tensor", lambda t, s: t.fill_diagonal_tensor(s), x(4, 4), x(4)),
    call("paddle.fill_diagonal_", lambda t: t.fill_diagonal_(0.5), x(4, 4)),
    call("t[1]=s", lambda t, s: _put(t, 1, s), x(3, 4), x(4)),
    call("t[:,1:3]=s", lambda t, s: _put(t, (slice(None), slice(1, 3)), s), x(3, 4), x(3, 2)),
    call("t[indices]=s", lambda t, k, s: _put(t, k, s), x(5, 4), i(1, high=5), x(1, 4)),
    call("t[mask]=0.5", lambda t, m: _put(t, m, 0.5), x(), b()),
    call("t[::-1]=s", lambda t, s: _put(t, slice(None, None, -1), s), x(3, 4), x(3, 4)),
]


def _put(tensor: paddle.Tensor, index: object, value: object) -> paddle.Tensor:
    tensor[index] = value
    return tensor


ROWS = [*_ORDER, *_JOIN, *_PICK, *_PUT]
