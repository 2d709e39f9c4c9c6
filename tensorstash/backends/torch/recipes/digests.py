"""Digests of tensors on a device, and the comparison of two of them without a wait."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from tensorstash.backends.torch.kernels import runs_triton

_BLOCK = 2**20  # words that are summed at once: the memory that this takes besides the tensor is three times as large

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}

_MULTIPLIER = -7046029254386353131  # an odd number with bits all over: 2**64 divided by the golden ratio


def device_digest(whole: Tensor) -> Tensor:
    """Return an ``int64``, on the tensor's device, that depends on every bit of a tensor that is one run of memory.

    Each word is multiplied by an odd number of its place, and its high bits are mixed into the low ones, before all are
    added up: in whatever order a device adds whole numbers, the sum is the same. Without Triton, operators of PyTorch
    do that, block by block and several times slower.
    """
    bits = whole.as_strided((whole.numel(),), (1,), whole.storage_offset())
    if bits.is_complex():
        bits = torch.view_as_real(bits).reshape(-1)
    place = bits.nbytes | bits.itemsize * int(bits.storage_offset()) | bits.data_ptr()
    words = bits.view(next(dtype for width, dtype in _WORDS.items() if not place % width))
    if not whole.is_cpu and runs_triton(whole.device.type):
        from tensorstash.backends.torch.triton_kernels import digest

        with torch.accelerator.device_index(whole.device.index):
            return digest(words, _MULTIPLIER)
    total = torch.zeros((), dtype=torch.int64, device=whole.device)
    for number, block in enumerate(torch.split(words, _BLOCK)):
        mixed = block.to(torch.int64) * _odd(whole.device)[: block.numel()]
        mixed ^= mixed >> 29
        mixed *= _MULTIPLIER
        mixed ^= mixed >> 32
        total += mixed.sum() * (2 * number + 1)
    return total


@lru_cache(8)
def _odd(device: torch.device) -> Tensor:
    """Return an odd number for each place in a block."""
    return (torch.arange(_BLOCK, dtype=torch.int64, device=device) * _MULTIPLIER) | 1


class Comparisons:
    """Digests on a device that backward compares, and looks at when it ends: that waits for the device, once.

    Each backward has a list of its own, which its graph alone keeps; two threads of one backward may begin two.
    """

    def __init__(self) -> None:
        self._latest: tuple[int, ref[partial[None]] | None] = (-1, None)

    def require_equal(self, one: Tensor, other: Tensor, refuse: Callable[[], Exception]) -> None:
        """Raise the error of ``refuse`` if two digests differ: when the running backward ends; at once without one."""
        backward = torch._C._current_graph_task_id()
        if backward < 0:
            _read([(one != other, refuse)])
            return
        latest, known = self._latest
        callback = None if known is None or latest != backward else known()
        if callback is None:
            callback = partial(_read, [])
            self._latest = backward, ref(callback)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(callback)
        callback.args[0].append((one != other, refuse))


def _read(pending: list[tuple[Tensor, Callable[[], Exception]]]) -> None:
    comparisons = pending[:]
    pending.clear()  # the engine frees its callbacks after backward has returned
    first = comparisons[0][0].device
    if torch.stack([differ.to(first) for differ, _ in comparisons]).any().item():
        raise next(refuse for differ, refuse in comparisons if differ.item())()
