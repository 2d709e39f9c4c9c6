"""PaddlePaddle for the command line."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import paddle


def accelerators() -> list[str]:
    """Return the accelerators that PaddlePaddle sees."""
    if not paddle.device.is_compiled_with_cuda():
        return [str(name) for name in paddle.device.get_available_custom_device() or ()]
    count = paddle.device.cuda.device_count()
    return [f"{paddle.device.cuda.get_device_name(number)} (CUDA {paddle.version.cuda()})" for number in range(count)]


def peak_of_device() -> int:
    """Return the peak of bytes that the CUDA allocator has handed out; 0 without a device."""
    if not paddle.device.is_compiled_with_cuda() or not paddle.device.cuda.device_count():
        return 0
    return int(paddle.device.cuda.max_memory_allocated())


def watch(before: Callable[[Iterator[bytes]], object], after: Callable[[], None]) -> None:
    """Have functions called around each step of every optimizer; the first gets the bytes of its gradients."""
    kinds = [paddle.optimizer.Optimizer]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    for kind in dict.fromkeys(kinds):
        if "step" in vars(kind):
            kind.step = _watched(kind.step, before, after)


def _watched(step: Any, before: Callable[[Iterator[bytes]], object], after: Callable[[], None]) -> Any:
    @wraps(step)
    def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(optimizer, "_tensorstash_is_stepping", False):  # a subclass calls the step of its base
            return step(optimizer, *args, **kwargs)
        optimizer._tensorstash_is_stepping = True
        try:
            before(_gradients(optimizer))
            result = step(optimizer, *args, **kwargs)
        finally:
            optimizer._tensorstash_is_stepping = False
        after()
        return result

    return watched


def _gradients(optimizer: Any) -> Iterator[bytes]:
    parameters = optimizer._parameter_list or ()
    for each in parameters:
        for parameter in each["params"] if isinstance(each, dict) else (each,):
            if parameter.grad is not None:
                yield parameter.grad.numpy().tobytes()
