"""Layers of Paddle that are computed again in backward."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor
from paddle.base.core import Generator
from paddle.distributed.fleet.meta_parallel.parallel_layers import random as parallel
from paddle.distributed.fleet.recompute.recompute import recompute as theirs
from xxhash import xxh3_64_intdigest

from tensorstash.abilities.checkpoints import Repeats
from tensorstash.backends.forward import is_called_by
from tensorstash.backends.parts import emptied, filled
from tensorstash.errors import StashError

# Paddle does not type them.
_recompute: Callable[..., Any] = theirs
_tracker: Callable[[], Any] = parallel.get_rng_state_tracker  # type: ignore[attr-defined]


class PaddleRepeats(Repeats):
    """Paddle's own ``recompute``, which reenters: its other kind hides the inputs from hooks."""

    tensor = Tensor
    generator = Generator
    constants = (paddle.dtype,)
    notes = frozenset(vars(paddle.nn.Layer())) - {"training"}
    inside = "_sub_layers"
    reenters = True
    source = _recompute.__module__

    def is_checkpointed(self) -> bool:
        return is_called_by(self.source)

    def repeat(self, again: Callable[..., Any], module: Any, tensors: list[Any]) -> Any:
        asks = any(not tensor.stop_gradient for tensor in tensors)
        if not asks and all(weight.stop_gradient for weight in module.parameters()):
            return again(*tensors)
        start = []
        if not asks:  # recompute gives the weights of a layer no gradients unless an argument asks for one
            start = [paddle.zeros([1])]
            start[0].stop_gradient = False
        made: Any = None

        def run(*given: Any) -> tuple[Any, ...]:
            nonlocal made
            if made is not None and is_called_by("paddle.base.dygraph.base", "grad"):
                raise StashError(
                    "checkpoint: paddle.grad goes through a block that is computed again, which would add to the "
                    "gradients of its weights; call backward() on the loss, or leave Checkpoint out of the policy"
                )
            found = list(given[len(start) :])
            made = (emptied(again(*found), self, found, []),)
            return tuple(found[len(tensors) :])

        outputs = _recompute(run, *start, *tensors)
        return filled(made[0], [*tensors, *outputs])

    def is_buffer(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.stop_gradient

    def copied(self, value: Any) -> Any:
        if isinstance(value, Generator):
            twin = Generator()
            twin.set_state(value.get_state())
            return twin
        alias = value.detach()
        alias.stop_gradient = value.stop_gradient
        return alias.clone()

    def digest(self, value: Any) -> Hashable:
        if isinstance(value, Generator):
            return tuple(word for word in str(value.get_state()).split() if not word.startswith("0x"))  # an address
        return xxh3_64_intdigest(value.detach().contiguous().numpy().reshape(-1).view("u1").data)

    @contextmanager
    def same_numbers(self, tensors: list[Any]) -> Iterator[None]:
        state, tracked = paddle.get_rng_state(), _tracker().get_states_tracker()
        try:
            yield
        finally:
            paddle.set_rng_state(state)
            _tracker().set_states_tracker(tracked)
