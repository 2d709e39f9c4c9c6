"""PaddlePaddle for the command line."""

from collections.abc import Callable, Mapping
from typing import Any

import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from tensorstash.cli.bench_worker import Training


def accelerators() -> list[str]:
    """Return the accelerators that PaddlePaddle sees."""
    if not paddle.device.is_compiled_with_cuda():
        return [str(name) for name in paddle.device.get_available_custom_device() or ()]
    count = paddle.device.cuda.device_count()
    return [f"{paddle.device.cuda.get_device_name(number)} (CUDA {paddle.version.cuda()})" for number in range(count)]


class Job(Training):
    """A small transformer that learns random numbers, the same in every step.

    Args:
        sizes: ``batch``, ``length``, ``width``, ``heads`` and ``depth``.
        is_checkpointed: whether the activations of each block are computed again in backward.
    """

    def __init__(self, sizes: Mapping[str, int], is_checkpointed: bool = False) -> None:
        paddle.seed(0)
        self._is_checkpointed = is_checkpointed
        width = sizes["width"]
        blocks = [
            nn.TransformerEncoderLayer(width, sizes["heads"], 4 * width, 0.0, "gelu", normalize_before=True)
            for _ in range(sizes["depth"])
        ]
        network = nn.Sequential(*blocks)
        super().__init__(network, paddle.optimizer.SGD(1e-3, parameters=network.parameters()))
        self._inputs = paddle.randn([sizes["batch"], sizes["length"], width])

    def forward(self, step: int, *, small: bool = False) -> Any:
        x = self._inputs[:1, :8] if small else self._inputs
        for block in self._network:
            x = recompute(block, x) if self._is_checkpointed else block(x)
        return x.square().mean()

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.clear_grad(set_to_zero=True)

    def peak(self) -> Callable[[], int] | None:
        if not paddle.device.is_compiled_with_cuda() or not paddle.device.cuda.device_count():
            return None
        paddle.device.cuda.reset_max_memory_allocated()
        return lambda: int(paddle.device.cuda.max_memory_allocated())
