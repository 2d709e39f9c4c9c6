"""Layers of Paddle that are computed again in backward."""

import random
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.base.core import Generator
from paddle.base.framework import EagerParamBase
from paddle.distributed.fleet.meta_parallel.parallel_layers import random as parallel
from paddle.distributed.fleet.recompute.recompute import recompute, switch_rng_state_tracker

from tensorstash.abilities.checkpoints import Repeats
from tensorstash.backends.arguments import apart
from tensorstash.backends.forward import is_called_by
from tensorstash.backends.paddle.layout import elements, spec_of
from tensorstash.backends.repeat import Again
from tensorstash.errors import StashError
from tensorstash.host.checksum import checksum, checksum_at

_LOOKED_AT_BYTES = 64 * 1024  # of a weight: a step changes all of it

# Paddle does not type them.
_recompute: Any = recompute
_parallel: Any = parallel


class PaddleRepeats(Repeats):
    """Paddle's own ``recompute``, which reenters.

    Its other kind hides the inputs from hooks.
    """

    tensor = Tensor
    constants = (paddle.dtype,)
    notes = frozenset(vars(paddle.nn.Layer())) - {"training", "_sub_layers"} | {"_data_format"}
    source = _recompute.__module__
    trained = "stop_gradient"

    def is_checkpointed(self) -> bool:
        return is_called_by(self.source)

    def repeat(self, again: Again, tensors: list[Any]) -> Any:
        made: list[Any] = []
        start = []
        if all(tensor.stop_gradient for tensor in tensors):
            if all(weight.stop_gradient for weight in again.module.parameters()):
                return again(*tensors)
            # recompute gives the weights of a layer no gradients unless an argument asks for one.
            start = [paddle.zeros([1])]
            start[0].stop_gradient = False

        def run(*given: Any) -> tuple[Any, ...]:
            if made and is_called_by("paddle.base.dygraph.base", "grad"):
                raise StashError(
                    "checkpoint: paddle.grad goes through a block that is computed again, which would add to the "
                    "gradients of its weights; call backward() on the loss, or leave Checkpoint out of the policy"
                )
            found = given[len(start) :]
            shape, returned, _ = apart(again(*found), self)
            places = [next((i for i, one in enumerate(found) if one is each), None) for each in returned]
            if None not in places:  # recompute fails with nothing but arguments
                returned[0], places[0] = returned[0].clone(), None
            made[:] = shape, places
            outputs = [each for each, place in zip(returned, places, strict=True) if place is None]
            if paddle.is_grad_enabled() and all(each.stop_gradient for each in outputs):  # or without gradients
                outputs[0] = paddle.zeros_like(outputs[0])
                outputs[0].stop_gradient = False
            return tuple(outputs)

        # Paddle 3.3.1 does not call hooks that are registered on the outputs of a PyLayer.
        # And the backward of most views ends the process where an output gets no gradient, but not that of unbind.
        outputs = (each.unsqueeze(0).unbind(0)[0] for each in _recompute(run, *start, *tensors))
        shape, places = made
        return shape([next(outputs) if place is None else tensors[place] for place in places])

    def is_buffer(self, value: Any) -> bool:
        # Statistics are frozen parameters; the dropout state of an LSTM has no memory.
        return (not isinstance(value, EagerParamBase) or value.stop_gradient) and value._is_initialized()

    def version(self, weight: Any) -> Hashable:
        # Steps of optimizers raise no version, nor does set_value. To look into a device would be to wait for it.
        is_there = weight._is_initialized() and weight.is_dense() and weight.place.is_cpu_place()
        nbytes = min(weight.element_size() * weight.size, _LOOKED_AT_BYTES) if is_there else 0
        return weight.inplace_version, nbytes and checksum_at(weight.data_ptr(), nbytes)

    def digest(self, value: Any) -> Hashable:
        if isinstance(value, Generator):
            return tuple(word for word in str(value.get_state()).split() if not word.startswith("0x"))  # an address
        if not isinstance(value, Tensor):
            return None
        if value.is_sparse():
            raise StashError("a sparse tensor")  # of which Paddle 3.3.1 makes no array: it crashes
        return checksum(elements(value, spec_of(value)).reshape(-1).view("u1")), value.inplace_version

    def numbers(self, tensors: list[Any]) -> Callable[[], AbstractContextManager[None]]:
        tracked = _parallel.get_rng_state_tracker().get_states_tracker()
        numbers = paddle.get_rng_state(), tracked, np.random.get_state(), random.getstate()
        return partial(switch_rng_state_tracker, *numbers)
