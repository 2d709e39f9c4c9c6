"""Layers of Paddle that are computed again in backward."""

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import unwrap
from types import CodeType
from typing import Any

import paddle
from paddle import Tensor
from paddle.base.core import Generator
from paddle.distributed.fleet.meta_parallel.parallel_layers import random as parallel
from paddle.distributed.fleet.recompute.recompute import recompute as theirs
from xxhash import xxh3_64_intdigest

from tensorstash.backends.paddle.hooks import HookScope, HookStack
from tensorstash.backends.paddle.repairs.surroundings import without_autocast
from tensorstash.backends.repeat import Repeats, taken_apart
from tensorstash.errors import StashError

# Paddle does not type them.
_recompute: Callable[..., Any] = theirs
_tracker: Callable[[], Any] = parallel.get_rng_state_tracker  # type: ignore[attr-defined]

_GRAD: CodeType = unwrap(paddle.grad).__code__


def is_checkpointed() -> bool:
    """Return whether Paddle's ``recompute`` runs on this thread, forward or again."""
    return _is_below(lambda code: code.co_filename == _recompute.__code__.co_filename)


class PaddleRepeats(Repeats):
    """Paddle's own ``recompute``, which reenters: its other kind hides the inputs from hooks.

    Args:
        stack: of the hooks.
    """

    tensor = Tensor
    generator = Generator
    constants = (paddle.dtype,)
    bringers = ("paddle.",)
    notes = frozenset({"_built"})
    sets_back_host = True

    def __init__(self, stack: HookStack) -> None:
        self._stack = stack

    def is_in_backward(self) -> bool:
        return False  # layers that recompute calls are told by is_checkpointed

    def is_checkpointed(self, module: Any) -> bool:
        return is_checkpointed()

    def repeat(self, again: Callable[..., Any], module: Any, tensors: list[Any]) -> Any:
        asks = any(not tensor.stop_gradient for tensor in tensors)
        if not asks and all(weight.stop_gradient for weight in module.parameters()):
            return again(*tensors)
        start = []
        if not asks:  # recompute gives the weights of a layer no gradients unless an argument asks for one
            start = [paddle.zeros([1])]
            start[0].stop_gradient = False
        build: Callable[[Any], Any] | None = None

        def run(*given: Any) -> tuple[Any, ...]:
            nonlocal build
            if build is not None and _is_below(lambda code: code is _GRAD):
                raise StashError(
                    "checkpoint: paddle.grad goes through a block that is computed again, which would add to the "
                    "gradients of its weights; call backward() on the loss, or leave Checkpoint out of the policy"
                )
            found = list(given[len(start) :])
            whole = taken_apart(again(*found), self, found, [])
            build = build or whole
            return tuple(found[len(tensors) :])

        outputs = _recompute(run, *start, *tensors)
        assert build is not None
        return build([*tensors, *outputs])

    def finish(self, tensors: list[Any]) -> None:
        if not all(tensor.place.is_cpu_place() for tensor in tensors):
            paddle.device.synchronize()

    def buffers(self, module: Any) -> dict[str, Any]:
        return {**dict(module.named_buffers()), **{n: p for n, p in module.named_parameters() if p.stop_gradient}}

    @contextmanager
    def unwritten(self, module: Any, names: tuple[str, ...]) -> Iterator[None]:
        # Copies are written instead: backward would refuse a new version.
        parts = dict(self.parts(module))
        held = []
        for name in names:
            path, _, leaf = name.rpartition(".")
            space = parts[path]._buffers if leaf in parts[path]._buffers else parts[path]._parameters
            held.append((space, leaf, space[leaf]))
        try:
            for space, leaf, buffer in held:
                space[leaf] = buffer.detach().clone()
            yield
        finally:
            for space, leaf, buffer in held:
                space[leaf] = buffer

    def own(self, module: Any) -> frozenset[int]:
        return frozenset(buffer.data_ptr() for buffer in self.buffers(module).values())

    def memory_of(self, tensor: Any, own: frozenset[int]) -> int | None:
        address = self.address(tensor)
        return address if address in own or (tensor.is_leaf and tensor.persistable) else None

    def digest(self, tensor: Any, own: frozenset[int]) -> Hashable:
        kind = tensor.dtype, tuple(tensor.shape), str(tensor.place)
        if (memory := self.memory_of(tensor, own)) is not None:
            return *kind, memory
        return *kind, xxh3_64_intdigest(tensor.detach().contiguous().numpy().reshape(-1).view("u1").data)

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def copied(self, tensor: Any) -> Any:
        alias = tensor.detach()
        alias.stop_gradient = tensor.stop_gradient
        return alias.clone()

    def version(self, tensor: Any) -> int:
        return int(tensor._inplace_version())

    def saving(self, pack: Callable[[Any], None], unpack: Callable[[None], Any]) -> AbstractContextManager[None]:
        return HookScope(self._stack, without_autocast(pack), without_autocast(unpack), private=True)

    def leaves(self, outputs: Any) -> tuple[list[Any], str]:
        found: list[Any] = []
        opaque: list[object] = []
        taken_apart(outputs, self, found, opaque)
        return found, f"returns a {type(opaque[0]).__qualname__}" if opaque else ""

    def random_state(self, tensors: list[Any]) -> Callable[[], None]:
        state, tracked = paddle.get_rng_state(), _tracker().get_states_tracker()

        def set_back() -> None:
            paddle.set_rng_state(state)
            _tracker().set_states_tracker(tracked)

        return set_back

    def parts(self, module: Any) -> Iterable[tuple[str, Any]]:
        yield from module.named_sublayers(include_self=True)

    def is_weight(self, value: object) -> bool:
        return isinstance(value, Tensor) and bool(value.persistable)

    def is_checkpoint_saving(self) -> bool:
        return is_checkpointed()


def _is_below(wanted: Callable[[CodeType], bool]) -> bool:
    """Return whether a function that is wanted has called, by however many others, this one."""
    frame = sys._getframe(1)
    while frame is not None and not wanted(frame.f_code):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
