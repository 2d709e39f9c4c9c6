"""The memory layouts an operator's inputs take in the sweep: the same values, or fewer, in another place."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Layout(NamedTuple):
    """How a tensor comes to a layout: by a ``view`` of a dense ``base`` with its values in the order of memory."""

    accepts: Callable[[Tensor], bool]
    base: Callable[[Tensor], Tensor]
    view: Callable[[Tensor], Tensor]


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _reversed(tensor: Tensor) -> Tensor:
    return tensor.permute(*reversed(range(tensor.dim())))


def _framed(tensor: Tensor) -> Tensor:
    """Return the tensor in the middle of a larger one, with something else around it."""
    frame = tensor[..., :1].expand(*tensor.shape[:-1], 2)
    return torch.cat([frame[..., :1], tensor, frame], -1)


def _has_elements(tensor: Tensor) -> bool:
    return tensor.dim() >= 1 and tensor.numel() > 0


LAYOUTS = {
    "contiguous": Layout(lambda t: True, _as_it_is, _as_it_is),
    "transposed": Layout(lambda t: t.dim() >= 2, _reversed, _reversed),
    "sliced": Layout(_has_elements, _framed, lambda t: t[..., 1:-2]),
    "expanded": Layout(_has_elements, lambda t: t[:1], _as_it_is),
    "channels_last": Layout(lambda t: t.dim() == 4, lambda t: t.permute(0, 2, 3, 1), lambda t: t.permute(0, 3, 1, 2)),
    "conj": Layout(Tensor.is_complex, Tensor.conj, Tensor.conj),
    "neg": Layout(lambda t: t.is_floating_point() or t.is_complex(), Tensor.neg, torch._neg_view),
    "scalar": Layout(_has_elements, lambda t: t.reshape(-1)[0], _as_it_is),
    "empty": Layout(_has_elements, lambda t: t[:0], _as_it_is),
}
"""Every layout by name; what does not accept a tensor leaves it contiguous."""


def laid_out(name: str, base: Tensor, shape: torch.Size) -> Tensor:
    """Return the view of ``base`` that has layout ``name``; ``shape`` is of the tensor that the base was made of."""
    if name == "expanded":
        return base.expand(shape)
    return LAYOUTS[name].view(base)


def reseed(seed: int) -> None:
    """Seed the random numbers of the CPU.

    ``torch.manual_seed`` also writes down the stack once for each kind of device that is not there, which takes longer
    than most operations.
    """
    torch.default_generator.manual_seed(seed)


def samples_of(operator: Any, device: str, dtype: torch.dtype) -> Iterator[Any]:
    """Yield PyTorch's own samples of an operator, with inputs that require grad.

    Its ``sample_inputs`` yields the same, and looks through the stack for a test that it knows: where many modules are
    loaded, that takes a second for each operator.
    """
    made = iter(operator.sample_inputs_func(operator, device, dtype, requires_grad=True))
    while True:
        reseed(1234)  # as PyTorch does
        random.seed(1234)
        np.random.seed(1234)
        if (sample := next(made, None)) is None:
            return
        yield sample
