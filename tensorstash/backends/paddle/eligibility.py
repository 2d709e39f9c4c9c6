"""Saved tensors that must stay as they are, and the reasons."""

import gc
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any
from weakref import ref

from paddle import Tensor
from paddle.base.framework import EagerParamBase

from tensorstash.backends.paddle.layout import dtype_name, is_out_of_reach
from tensorstash.backends.paddle.nodes import node_of


class Parameters:
    """The parameters of the process, and the reasons why they and other tensors are kept. Thread-safe.

    A view of a parameter, such as the transpose that a matrix product saves, remembers nothing of its base, and is
    known by its memory.

    Args:
        entries: how many scopes have been entered; addresses of parameters are looked up again in each.
    """

    def __init__(self, entries: Callable[[], int]) -> None:
        self._entries = entries
        # Parameters are made anywhere, also in garbage collections that begin while the lock is held.
        self._lock = threading.RLock()
        self._known: dict[int, ref[Tensor]] = {}
        self._made = 0
        self._seen = -1, -1
        # Replaced as a whole, for other threads to read.
        self._at: dict[int, ref[Tensor]] = {}
        self._nodes: tuple[object, dict[int, ref[Tensor]]] = None, {}

    def repair(self) -> None:
        """Learn of the parameters that there are, and of each that is made from now on.

        Instances refer to their class. What ``gc.freeze()`` has set aside the collector does not find.
        """
        kinds: list[Any] = [EagerParamBase]
        for kind in kinds:
            kinds += kind.__subclasses__()
        self.register(each for each in gc.get_referrers(*kinds) if isinstance(each, EagerParamBase))
        make = kinds[0].__init__

        @wraps(make)
        def __init__(parameter: Tensor, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            make(parameter, *args, **kwargs)
            self.register([parameter])

        kinds[0].__init__ = __init__

    def keep_reason(self, tensor: Tensor, /) -> str | None:
        """See :meth:`tensorstash.abilities.Backend.keep_reason`.

        A parameter comes as a plain tensor without its class and attributes, but leaf and ``persistable``. Integer
        and boolean tensors may claim to need gradients.
        """
        if tensor.is_leaf:
            if tensor.persistable:
                return "parameter"
            if not tensor.stop_gradient:
                return "leaf that requires grad"
        if tensor.is_dist():
            return "distributed"
        if not tensor.is_dense():
            return "sparse layout"
        if not tensor._is_initialized():
            return "no real memory"
        if dtype_name(tensor.dtype) is None:
            return "dtype"
        if 0 in tensor.shape:
            return "no elements"
        if is_out_of_reach(tensor):
            return "FLAGS_use_stride_kernel is off"
        self._find()
        known = self._at.get(tensor.data_ptr() - tensor._offset())
        parameter = None if known is None else known()
        if parameter is not None and parameter._is_shared_buffer_with(tensor):
            return "view of a parameter"
        return None

    def leaf_of(self, node: Any) -> Tensor | None:
        """Return the parameter whose gradient a node accumulates; None for leaves that are none."""
        self._find()
        if self._nodes[0] is not self._at:
            dense = [each for each in self._alive() if not each.stop_gradient and not each.is_dist()]
            nodes = {made.node_ptr(): ref(each) for each in dense if (made := node_of(each)) is not None}
            self._nodes = self._at, nodes
        address = node.node_ptr()
        known = self._nodes[1].get(address)
        leaf = None if known is None else known()
        own = None if leaf is None else node_of(leaf)
        return leaf if own is not None and own.node_ptr() == address else None

    def register(self, parameters: Iterable[Tensor], /) -> None:
        """Learn of parameters, such as those of a model that is wrapped."""
        with self._lock:
            for each in parameters:
                self._known[id(each)] = ref(each)
                self._made += 1

    def _find(self) -> None:
        """Look up where parameters are, if there may be other ones than before, or elsewhere."""
        seen = self._entries(), self._made
        if seen != self._seen:
            with self._lock:
                alive = self._alive()
                self._known = {id(each): ref(each) for each in alive}
                there = [each for each in alive if not each.is_dist() and each._is_initialized()]
                self._at = {each.data_ptr() - each._offset(): ref(each) for each in there}
                self._seen = seen

    def _alive(self) -> list[Tensor]:
        return [found for each in list(self._known.values()) if (found := each()) is not None]
