"""Products, decompositions, transforms of signals, graphs."""

import numpy as np
import paddle

from .rows import Values, c, call, i, many, one, positive, x


def _definite(a: Values) -> Values:
    n = a.shape[-1] if a.ndim else 1
    return a @ np.conj(np.swapaxes(a, -1, -2)) + n * np.eye(n) if a.ndim > 1 else np.abs(a) + 1


def _regular(a: Values) -> Values:
    return a + 3 * np.eye(a.shape[-1]) if a.ndim > 1 else a


def _lower(a: Values) -> Values:
    return np.tril(_regular(a)) if a.ndim > 1 else a


_SQUARE = x(3, 3, made=_regular)
_SQUARES = x(2, 3, 3, made=_regular)
_DEFINITE = x(3, 3, made=_definite)
_DEFINITES = x(2, 3, 3, made=_definite)

_PRODUCTS = [
    *many("paddle.matmul paddle.mm operator.matmul", x(3, 4), x(4, 5)),
    one("paddle.matmul", x(3, 4), x(5, 4), transpose_y=True),
    one("paddle.matmul", x(4, 3), x(4, 5), transpose_x=True),
    one("paddle.matmul", x(2, 3, 4), x(4, 5)),
    one("paddle.matmul", x(2, 3, 4), x(2, 4, 5)),
    one("paddle.matmul", x(4), x(4)),
    *many("paddle.bmm", x(2, 3, 4), x(2, 4, 5)),
    *many("paddle.mv", x(3, 4), x(4)),
    *many("paddle.dot paddle.inner paddle.outer paddle.ger paddle.vecdot", x(4), x(4)),
    one("paddle.dot", x(3, 4), x(3, 4)),
    one("paddle.inner", x(3, 4), x(5, 4)),
    one("paddle.kron", x(2, 3), x(3, 2)),
    one("paddle.cross", x(4, 3), x(4, 3)),
    one("paddle.tensordot", x(3, 4, 2), x(4, 2, 5), axes=2),
    *many("paddle.addmm paddle.addmm_", x(3, 5), x(3, 4), x(4, 5), alpha=0.5, beta=2.0),
    *many("paddle.baddbmm paddle.baddbmm_", x(2, 3, 5), x(2, 3, 4), x(2, 4, 5)),
    call("paddle.einsum(ij,jk)", lambda s, t: paddle.einsum("ij,jk->ik", s, t), x(3, 4), x(4, 5)),
    call("paddle.einsum(bhid,bhjd)", lambda s, t: paddle.einsum("bhid,bhjd->bhij", s, t), x(1, 2, 3, 4), x(1, 2, 5, 4)),
    call("paddle.einsum(ii)", lambda t: paddle.einsum("ii->i", t), x(3, 3)),
    one("linalg.multi_dot", [x(3, 4), x(4, 5), x(5, 2)]),
    one("F.linear", x(3, 4), x(4, 5), x(5)),
    one("F.linear", x(2, 3, 4), x(4, 5)),
    one("F.bilinear", x(3, 4), x(3, 5), x(2, 4, 5), x(1, 2)),
    call("linalg.matrix_power(3)", lambda t: paddle.linalg.matrix_power(t, 3), _SQUARE),
    call("linalg.matrix_power(-2)", lambda t: paddle.linalg.matrix_power(t, -2), _SQUARE),
]

_DECOMPOSITIONS = [
    *many("linalg.inv linalg.det linalg.slogdet linalg.eigvals linalg.eig linalg.matrix_exp", _SQUARE),
    *many("linalg.inv linalg.det linalg.slogdet", _SQUARES),
    *many("linalg.cholesky linalg.eigh linalg.eigvalsh linalg.svdvals", _DEFINITE),
    *many("linalg.cholesky linalg.eigh linalg.inv", _DEFINITES),
    one("linalg.cholesky", _DEFINITE, upper=True),
    *many("linalg.svd linalg.qr linalg.pinv linalg.lu linalg.svdvals", x(4, 3)),
    one("linalg.pinv", _DEFINITE, hermitian=True),
    one("linalg.qr", x(4, 3), mode="r"),
    call("linalg.lu_unpack", lambda t: paddle.linalg.lu_unpack(*paddle.linalg.lu(t)), _SQUARE),
    one("linalg.solve", _SQUARE, x(3, 2)),
    one("linalg.triangular_solve", x(3, 3, made=_lower), x(3, 2), upper=False),
    one("linalg.cholesky_solve", x(3, 2), x(3, 3, made=_lower), upper=False),
    one("linalg.cholesky_inverse", x(3, 3, made=_lower)),
    call("linalg.lu_solve", lambda s, t: paddle.linalg.lu_solve(s, *paddle.linalg.lu(t)), x(3, 2), _SQUARE),
    one("linalg.lstsq", x(4, 3), x(4, 2)),
    one("linalg.householder_product", x(4, 3), x(3)),
    one("linalg.ormqr", x(4, 3), x(3), x(4, 2), transpose=True),
    *(one("linalg.cond", _SQUARE, p=p) for p in (None, "fro", 1, -2)),
    *many("linalg.cov linalg.corrcoef", x(3, 5)),
    one("linalg.cov", x(3, 5), rowvar=False),
    one("linalg.pca_lowrank", x(4, 3), q=2),
    one("linalg.svd_lowrank", x(4, 3), q=2),
    one("linalg.cross", x(4, 3), x(4, 3)),
    one("linalg.matmul", x(3, 4), x(4, 5)),
    one("linalg.vecdot", x(3, 4), x(3, 4)),
    *many("linalg.diagonal linalg.matrix_transpose", x()),
]

_TRANSFORMS = [
    *many("fft.fft fft.ifft fft.rfft fft.ihfft fft.irfft fft.hfft fft.fftshift fft.ifftshift", x(3, 6)),
    *many("fft.fft2 fft.ifft2 fft.rfft2 fft.ihfft2 fft.irfft2 fft.hfft2", x(3, 6)),
    *many("fft.fftn fft.ifftn fft.rfftn fft.ihfftn fft.irfftn fft.hfftn", x(2, 3, 6)),
    *many("fft.fft fft.ifft fft.rfft", x(3, 6), n=4, axis=0, norm="ortho"),
    one("signal.stft", x(2, 32), n_fft=8),
    one("signal.stft", x(2, 32), n_fft=8, hop_length=4, onesided=False),
    call("signal.istft", lambda t: paddle.signal.istft(t, n_fft=8), x(5, 9)),
    call("signal.frame", lambda t: paddle.signal.frame(t, 4, 2), x(2, 12)),
    call("signal.overlap_add", lambda t: paddle.signal.overlap_add(t, 2), x(2, 4, 5)),
]

_LABELS = i(5, high=3, made=lambda a: np.sort(a.reshape(-1)).reshape(a.shape))

_GRAPHS = [
    *(
        one(f"{place}.segment_{kind}", x(5, 4), _LABELS)
        for place in ("geometric", "incubate")
        for kind in ("sum", "mean", "max", "min")
    ),
    *(
        one("geometric.send_u_recv", x(3, 4), i(5, high=3), i(5, high=3), reduce_op=kind)
        for kind in ("sum", "mean", "max", "min")
    ),
    *(
        one(
            "geometric.send_ue_recv",
            x(3, 4),
            positive(5, 4),
            i(5, high=3),
            i(5, high=3),
            message_op=how,
            reduce_op=kind,
        )
        for how in ("add", "sub", "mul", "div")
        for kind in ("sum", "mean", "max", "min")
    ),
    *(
        one("geometric.send_uv", x(3, 4), positive(3, 4), i(5, high=3), i(5, high=3), message_op=how)
        for how in ("add", "sub", "mul", "div")
    ),
    *(one("incubate.graph_send_recv", x(3, 4), i(5, high=3), i(5, high=3), pool_type=kind) for kind in ("sum", "max")),
]

_FUSED = [
    one("incubate.softmax_mask_fuse_upper_triangle", x(1, 2, 8, 8)),
    one("incubate.softmax_mask_fuse", x(1, 2, 8, 8), c(1, 1, 8, 8)),
    one("incubate.identity_loss", x(), reduction="mean"),
    one("fused.fused_linear", x(3, 4), x(4, 5), x(5)),
    one("fused.fused_matmul_bias", x(3, 4), x(4, 5), x(5)),
    one("fused.fused_linear_activation", x(3, 4), x(4, 5), x(5)),
    one("fused.fused_dropout_add", x(), x(), p=0.4),
    one("fused.fused_bias_dropout_residual_layer_norm", x(2, 3, 4), x(2, 3, 4), x(4), x(4), x(4)),
    one("fused.fused_rotary_position_embedding", x(2, 4, 2, 4), x(2, 4, 2, 4)),
    one("fused.fused_layer_norm", x(3, 4), x(4), x(4), epsilon=1e-5),
    one("fused.fused_bias_act", x(3, 4), x(4)),
    one("F.scaled_dot_product_attention", x(1, 4, 2, 3), x(1, 4, 2, 3), x(1, 4, 2, 3)),
    one("F.scaled_dot_product_attention", x(1, 4, 2, 3), x(1, 4, 2, 3), x(1, 4, 2, 3), is_causal=True),
    one("F.scaled_dot_product_attention", x(1, 4, 2, 3), x(1, 4, 2, 3), x(1, 4, 2, 3), c(1, 1, 4, 4)),
]

ROWS = [*_PRODUCTS, *_DECOMPOSITIONS, *_TRANSFORMS, *_GRAPHS, *_FUSED]
