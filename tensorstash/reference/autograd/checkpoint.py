"""Trading computation for memory: recompute a region in backward instead of saving its tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tensorstash.reference.autograd.hooks import saved_tensors_hooks
from tensorstash.reference.autograd.modes import enable_grad
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.errors import HookError
from tensorstash.reference.random import Generator
from tensorstash.reference.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any, generators: Sequence[Generator] = ()) -> Any:
    """Run `function` and keep only its tensor arguments; backward runs it again to get what it saved.

    Works through hooks, like PyTorch's non-reentrant form: it nests, and gradients flow to everything `function`
    uses. The arguments are saved through the hooks that surround the call. Hooks entered inside `function` replace
    those of the checkpoint, so what they see is stored.

    Args:
        function: must compute the same each time; it is kept until the graph has gone.
        args: its arguments; the tensors among them are saved.
        generators: random generators it draws from; they are put back for the second run.

    Raises:
        HookError: in backward, if the second run saved something else than the first.
    """
    region = _Region(function, args, generators)
    with saved_tensors_hooks(region.pack, region.unpack):
        return function(*args)


class _Region:
    """What one checkpoint needs to run again; owned by the nodes recorded inside it."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], generators: Sequence[Generator]) -> None:
        self._function = function
        self._args = [SavedTensor(x) if isinstance(x, Tensor) else x for x in args]
        self._generators = [(generator, generator.get_state()) for generator in generators]
        self._count = 0
        self._recomputed: dict[int, Tensor] = {}
        self._lock = threading.RLock()

    def pack(self, tensor: Tensor) -> int:
        self._count += 1
        return self._count - 1

    def unpack(self, index: int) -> Tensor:
        with self._lock:
            if index not in self._recomputed:
                self._recompute()
            return self._recomputed.pop(index)

    def _recompute(self) -> None:
        found: list[Tensor] = []

        def keep(tensor: Tensor) -> int:
            found.append(tensor.detach())
            return len(found) - 1

        after = [generator.get_state() for generator, _ in self._generators]
        for generator, state in self._generators:
            generator.set_state(state)
        try:
            with enable_grad(), saved_tensors_hooks(keep, found.__getitem__):
                self._function(*(_leaf(x.unpack(None)) if isinstance(x, SavedTensor) else x for x in self._args))
        finally:
            for (generator, _), state in zip(self._generators, after, strict=True):
                generator.set_state(state)
        if len(found) != self._count:
            raise HookError(f"the second run of a checkpoint saved {len(found)} tensors, the first {self._count}")
        self._recomputed = dict(enumerate(found))


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)
