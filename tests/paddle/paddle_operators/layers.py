"""Operators of layers: convolutions, pools, norms, losses, images."""

import numpy as np
import paddle
from paddle import nn

from .rows import c, call, i, many, one, positive, x

_CONVOLUTIONS = [
    one("F.conv1d", x(2, 4, 8), x(6, 4, 3), x(6), padding=1),
    one("F.conv1d", x(2, 4, 8), x(6, 2, 3), groups=2),
    one("F.conv1d", x(2, 8, 4), x(6, 4, 3), data_format="NLC"),
    one("F.conv2d", x(2, 4, 6, 6), x(6, 4, 3, 3), x(6), padding=1, stride=2),
    one("F.conv2d", x(2, 4, 6, 6), x(4, 1, 3, 3), groups=4),
    one("F.conv2d", x(2, 4, 6, 6), x(4, 2, 3, 3), groups=2, dilation=2),
    one("F.conv2d", x(2, 6, 6, 4), x(6, 4, 3, 3), data_format="NHWC"),
    one("F.conv3d", x(1, 2, 4, 4, 4), x(3, 2, 3, 3, 3), x(3), padding=1),
    one("F.conv1d_transpose", x(2, 4, 8), x(4, 3, 3), x(3), stride=2),
    one("F.conv2d_transpose", x(2, 4, 5, 5), x(4, 3, 3, 3), x(3), stride=2),
    one("F.conv2d_transpose", x(2, 4, 5, 5), x(4, 1, 3, 3), groups=4),
    one("F.conv3d_transpose", x(1, 2, 3, 3, 3), x(2, 3, 3, 3, 3), x(3)),
    one("vision.deform_conv2d", x(1, 2, 5, 5), x(1, 18, 3, 3), x(3, 2, 3, 3), x(3), mask=None),
    call(
        "vision.deform_conv2d(mask)",
        lambda s, o, w, m: paddle.vision.ops.deform_conv2d(s, o, w, mask=m),
        x(1, 2, 5, 5),
        x(1, 18, 3, 3),
        x(3, 2, 3, 3),
        positive(1, 9, 3, 3),
    ),
]

_IMAGE = x(2, 3, 8, 8)
_POOLS = [
    *many("F.avg_pool1d F.max_pool1d", x(2, 3, 8), kernel_size=2),
    *many("F.avg_pool2d F.max_pool2d", _IMAGE, kernel_size=2),
    *many("F.avg_pool2d F.max_pool2d", _IMAGE, kernel_size=3, stride=2, padding=1),
    *many("F.avg_pool3d F.max_pool3d", x(1, 2, 4, 4, 4), kernel_size=2),
    one("F.max_pool1d", x(2, 3, 8), kernel_size=2, return_mask=True),
    one("F.max_pool2d", _IMAGE, kernel_size=2, return_mask=True),
    one("F.max_pool3d", x(1, 2, 4, 4, 4), kernel_size=2, return_mask=True),
    one("F.lp_pool1d", positive(2, 3, 8), norm_type=2, kernel_size=2),
    one("F.lp_pool2d", positive(2, 3, 8, 8), norm_type=2, kernel_size=2),
    *many("F.adaptive_avg_pool1d F.adaptive_max_pool1d", x(2, 3, 8), output_size=3),
    *many("F.adaptive_avg_pool2d F.adaptive_max_pool2d", _IMAGE, output_size=3),
    *many("F.adaptive_avg_pool3d F.adaptive_max_pool3d", x(1, 2, 4, 4, 4), output_size=2),
    one("F.fractional_max_pool2d", _IMAGE, output_size=3, random_u=0.3),
    one("F.fractional_max_pool3d", x(1, 2, 4, 4, 4), output_size=2, random_u=0.3),
    *(call(f"F.max_unpool{n}d", lambda t, n=n: _unpooled(t, n), x(1, 2, *(4,) * n)) for n in (1, 2, 3)),
]

_BOXES = c(3, 4, made=lambda a: np.array([[0, 0, 4, 4], [1, 1, 6, 5], [2, 0, 7, 7]])[: len(a)] if a.ndim else a)
_COUNTS = lambda: paddle.to_tensor([3], "int32")  # noqa: E731
_IMAGES = [
    call("vision.roi_align", lambda t, s: paddle.vision.ops.roi_align(t, s, _COUNTS(), 2), x(1, 4, 8, 8), _BOXES),
    call("vision.roi_pool", lambda t, s: paddle.vision.ops.roi_pool(t, s, _COUNTS(), 2), x(1, 4, 8, 8), _BOXES),
    call("vision.psroi_pool", lambda t, s: paddle.vision.ops.psroi_pool(t, s, _COUNTS(), 2), x(1, 8, 8, 8), _BOXES),
    *(
        one("F.interpolate", x(2, 3, 4, 4), size=[6, 6], mode=mode)
        for mode in ("nearest", "bilinear", "bicubic", "area")
    ),
    one("F.interpolate", x(2, 3, 4), size=[6], mode="linear", data_format="NCW"),
    one("F.interpolate", x(1, 2, 3, 3, 3), size=[4, 4, 4], mode="trilinear", data_format="NCDHW"),
    one("F.upsample", x(2, 3, 4, 4), scale_factor=2, mode="bilinear", align_corners=True),
    *(one("F.grid_sample", x(1, 2, 4, 4), x(1, 3, 3, 2), mode=mode) for mode in ("bilinear", "nearest")),
    one("F.grid_sample", x(1, 2, 4, 4), x(1, 3, 3, 2), padding_mode="border"),
    call("F.affine_grid", lambda t: nn.functional.affine_grid(t, [2, 3, 4, 4]), x(2, 2, 3)),
    one("F.pixel_shuffle", x(2, 8, 3, 3), upscale_factor=2),
    one("F.pixel_unshuffle", x(2, 2, 4, 4), downscale_factor=2),
    one("F.channel_shuffle", x(2, 6, 3, 3), groups=2),
    one("F.temporal_shift", x(4, 4, 3, 3), seg_num=2),
    one("F.unfold", x(2, 3, 6, 6), kernel_sizes=3),
    one("F.fold", x(2, 12, 9), output_sizes=[4, 4], kernel_sizes=2),
    *(
        one("F.pad", x(2, 3, 4, 4), pad=[1, 2, 1, 1], mode=mode)
        for mode in ("constant", "reflect", "replicate", "circular")
    ),
    one("F.zeropad2d", x(2, 3, 4, 4), padding=[1, 2, 1, 1]),
]

_NORMS = [
    call("F.layer_norm", lambda t, w, s: nn.functional.layer_norm(t, 128, w, s), x(2, 8, 128), positive(128), x(128)),
    call("F.layer_norm(plain)", lambda t: nn.functional.layer_norm(t, 128), x(2, 8, 128)),
    call("F.rms_norm", lambda t, w: nn.functional.rms_norm(t, [128], w), x(2, 8, 128), positive(128)),
    call(
        "F.group_norm",
        lambda t, w, s: nn.functional.group_norm(t, 4, weight=w, bias=s),
        x(2, 8, 12, 12),
        positive(8),
        x(8),
    ),
    call(
        "F.instance_norm",
        lambda t, w, s: nn.functional.instance_norm(t, weight=w, bias=s),
        x(2, 8, 12, 12),
        positive(8),
        x(8),
    ),
    one("F.batch_norm", x(4, 16, 128), c(16), positive(16), positive(16), x(16), training=True),
    one("F.batch_norm", x(4, 16, 128), c(16), positive(16), positive(16), x(16), training=False),
    one("F.batch_norm", x(4, 12, 16), c(16), positive(16), positive(16), x(16), training=True, data_format="NLC"),
    one("F.batch_norm", x(24, 16), c(16), positive(16), positive(16), x(16), training=True),
    one("F.local_response_norm", x(2, 6, 4, 4), size=3),
    call("nn.spectral_norm", lambda t: nn.SpectralNorm([4, 3], dim=0, power_iters=2)(t), x(4, 3)),
    *(
        call(f"nn.{kind.__name__}", lambda t, kind=kind: kind(4, 3)(t)[0], x(2, 5, 4))
        for kind in (nn.SimpleRNN, nn.LSTM, nn.GRU)
    ),
]

_CLASSES = i(5, high=4)
_SIGNS = c(5, 4, made=lambda a: np.where(a.real > 0, 1.0, -1.0))
_UNIT = x(5, 4, low=0.1, high=0.9, edges=(0.0, 1.0))
_TARGET = c(5, 4, low=0.1, high=0.9)
_LOSSES = [
    *many("F.mse_loss F.l1_loss F.smooth_l1_loss", x(5, 4), x(5, 4)),
    *(one("F.mse_loss", x(5, 4), x(5, 4), reduction=how) for how in ("none", "sum")),
    one("F.kl_div", x(5, 4), _TARGET),
    one("F.kl_div", x(5, 4), x(5, 4), log_target=True),
    one("F.binary_cross_entropy", _UNIT, _TARGET),
    one("F.log_loss", x(5, 1, low=0.1, high=0.9, edges=(0.0, 1.0)), c(5, 1, low=0.1, high=0.9)),
    call("F.dice_loss", lambda t, k: nn.functional.dice_loss(nn.functional.softmax(t), k), x(5, 4), i(5, 1, high=4)),
    *many("F.binary_cross_entropy_with_logits F.sigmoid_focal_loss", x(5, 4), _TARGET),
    *many("F.soft_margin_loss F.hinge_embedding_loss", x(5, 4), _SIGNS),
    one("F.multi_label_soft_margin_loss", x(5, 4), c(5, 4, made=lambda a: (a.real > 0) * 1.0)),
    *many("F.cross_entropy F.multi_margin_loss F.nll_loss", x(5, 4), _CLASSES),
    one("F.cross_entropy", x(5, 4), c(5, 4, low=0.0, high=0.5), soft_label=True),
    one("F.cross_entropy", x(5, 4), _CLASSES, label_smoothing=0.1),
    one("F.cross_entropy", x(5, 4), _CLASSES, reduction="none"),
    one("F.cross_entropy", x(2, 4, 3), i(2, 3, high=4), axis=1),
    one("F.cross_entropy", _UNIT, _CLASSES, use_softmax=False),
    one("F.cross_entropy", x(5, 4), _CLASSES, positive(4)),
    one("F.softmax_with_cross_entropy", x(5, 4), i(5, 1, high=4)),
    one("F.softmax_with_cross_entropy", x(5, 4), i(5, 1, high=4), return_softmax=True),
    one("F.softmax_with_cross_entropy", x(5, 4), c(5, 4, low=0.0, high=0.5), soft_label=True),
    one("F.margin_cross_entropy", _UNIT, _CLASSES),
    one("F.poisson_nll_loss", x(5, 4), positive(5, 4)),
    one("F.gaussian_nll_loss", x(5, 4), x(5, 4), positive(5, 4)),
    one("F.margin_ranking_loss", x(5, 4), x(5, 4), _SIGNS, margin=0.1),
    *many("F.triplet_margin_loss F.triplet_margin_with_distance_loss", x(5, 4), x(5, 4), x(5, 4)),
    one("F.cosine_embedding_loss", x(5, 4), x(5, 4), c(5, made=lambda a: np.where(a.real > 0, 1.0, -1.0))),
    one("F.npair_loss", x(5, 4), x(5, 4), c(5, made=np.round)),
    one("F.multi_label_margin_loss", x(5, 4), i(5, 4, high=4, low=-1)),
    call("F.hsigmoid_loss", lambda t, k, w: nn.functional.hsigmoid_loss(t, k, 4, w), x(5, 6), _CLASSES, x(3, 6)),
    call("F.ctc_loss", lambda t: nn.functional.ctc_loss(t, *_sequences(), reduction="sum"), x(6, 2, 5)),
    call("F.rnnt_loss", lambda t: nn.functional.rnnt_loss(t, *_pairs(), reduction="sum"), x(2, 4, 3, 5)),
    call(
        "F.adaptive_log_softmax_with_loss",
        lambda t, k, h, p, q: nn.functional.adaptive_log_softmax_with_loss(t, k, h, [[p, q]], [2, 4]),
        x(5, 6),
        _CLASSES,
        x(6, 3),
        x(6, 2),
        x(2, 2),
    ),
]


def _unpooled(tensor: paddle.Tensor, rank: int) -> paddle.Tensor:
    _, where = getattr(nn.functional, f"max_pool{rank}d")(paddle.ones_like(tensor), 2, return_mask=True)
    pooled = tensor[(..., *(slice(0, 2) for _ in range(rank)))]
    return getattr(nn.functional, f"max_unpool{rank}d")(pooled, where, 2)


def _sequences() -> tuple[paddle.Tensor, ...]:
    labels = paddle.to_tensor([[1, 2], [3, 4]], "int32")
    return labels, paddle.to_tensor([6, 6], "int64"), paddle.to_tensor([2, 2], "int64")


def _pairs() -> tuple[paddle.Tensor, ...]:
    labels = paddle.to_tensor([[1, 2], [3, 4]], "int32")
    return labels, paddle.to_tensor([4, 4], "int32"), paddle.to_tensor([2, 2], "int32")


ROWS = [*_CONVOLUTIONS, *_POOLS, *_IMAGES, *_NORMS, *_LOSSES]
