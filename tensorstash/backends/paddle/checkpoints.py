"""Layers of Paddle that are computed again in backward."""

import random
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.base.core import Generator
from paddle.distributed.fleet.meta_parallel.parallel_layers import random as parallel
from paddle.distributed.fleet.recompute.recompute import recompute as theirs

from tensorstash.backends.forward import is_called_by
from tensorstash.backends.repeat import Again, Repeats, emptied, filled
from tensorstash.errors import StashError
from tensorstash.host.checksum import checksum

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

    def repeat(self, again: Again, tensors: list[Any]) -> Any:
        start = []
        if all(tensor.stop_gradient for tensor in tensors):
            if all(weight.stop_gradient for weight in again.module.parameters()):
                return again(*tensors)
            # recompute gives the weights of a layer no gradients unless an argument asks for one.
            start = [paddle.zeros([1])]
            start[0].stop_gradient = False
        made: list[Any] = []

        def run(*given: Any) -> tuple[Any, ...]:
            if made and is_called_by("paddle.base.dygraph.base", "grad"):
                raise StashError(
                    "checkpoint: paddle.grad goes through a block that is computed again, which would add to the "
                    "gradients of its weights; call backward() on the loss, or leave Checkpoint out of the policy"
                )
            found = given[len(start) :]
            shape, every, _ = emptied(again(*found), self, found)
            made[:] = [shape]
            return tuple(every[len(found) :])

        outputs = _recompute(run, *start, *tensors)
        return filled(made[0], [*tensors, *outputs])

    def is_buffer(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.stop_gradient

    def digest(self, value: Any) -> Hashable:
        if isinstance(value, Generator):
            return tuple(word for word in str(value.get_state()).split() if not word.startswith("0x"))  # an address
        return checksum(value.detach().contiguous().numpy().reshape(-1).view("u1"))

    def numbers(self, tensors: list[Any]) -> Callable[[], None]:
        state, tracked = paddle.get_rng_state(), _tracker().get_states_tracker()
        pythons, numpys = random.getstate(), np.random.get_state()

        def back() -> None:
            random.setstate(pythons)
            np.random.set_state(numpys)
            paddle.set_rng_state(state)
            _tracker().set_states_tracker(tracked)

        return back
