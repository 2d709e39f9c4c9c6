"""Saved tensors that must stay as they are, and the reasons."""

import gc
import sys
import threading
from collections.abc import Callable, Iterable
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
        self._lock = threading.Lock()
        self._deaths = 0
        self._kinds: list[type] = [EagerParamBase]
        self._seen: tuple[int, list[int], int] = -1, [], -1
        self._known: list[ref[Tensor]] = []
        # Replaced as a whole, for other threads to read.
        self._at: dict[int, ref[Tensor]] = {}
        self._nodes: tuple[object, dict[int, ref[Tensor]]] = None, {}

    def keep_reason(self, tensor: Tensor, /) -> str | None:
        """Say why the tensor must be kept as it is, or return None if it can be stashed.

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
        address = node.node_ptr()
        leaf = self._leaf(address)
        if leaf is None:
            self._find()
            if self._nodes[0] is not self._at:
                dense = [each for each in self._alive() if not each.stop_gradient and not each.is_dist()]
                nodes = {node.node_ptr(): ref(each) for each in dense if (node := node_of(each)) is not None}
                self._nodes = self._at, nodes
                leaf = self._leaf(address)
        return leaf

    def _leaf(self, address: int) -> Tensor | None:
        known = self._nodes[1].get(address)
        leaf = None if known is None else known()
        node = None if leaf is None else node_of(leaf)
        return leaf if node is not None and node.node_ptr() == address else None

    def register(self, parameters: Iterable[Tensor], /) -> None:
        """Learn of parameters, such as those of a model that is wrapped."""
        with self._lock:
            self._add(parameters)

    def _find(self) -> None:
        """Look for parameters, if there may be other ones than those that are known, or elsewhere."""
        # Instances hold a reference to their class, and classes to their bases, so that the counts tell when
        # parameters have come or gone; one that came as another went is told by the death.
        if self._seen != self._sight():
            with self._lock:  # a search under way holds references, too
                seen = self._sight()
                if seen != self._seen:
                    self._add(self._search() if seen[1:] != self._seen[1:] else [])
                    self._seen = seen

    def _sight(self) -> tuple[int, list[int], int]:
        return self._entries(), [sys.getrefcount(kind) for kind in self._kinds], self._deaths

    def _search(self) -> list[Tensor]:
        """Return the parameters that the garbage collector finds.

        Instances refer to their class. The search holds the interpreter lock and gives out nothing else, unlike
        ``gc.get_objects()``, whose list breaks tuples that other threads are just building. What ``gc.freeze()`` has
        set aside it does not find.
        """
        kinds: list[type] = [EagerParamBase]
        for kind in kinds:
            kinds += kind.__subclasses__()
        if kinds != self._kinds:  # or the references that lists hold would look like instances
            self._kinds = kinds
        return [each for each in gc.get_referrers(*kinds) if isinstance(each, EagerParamBase)]

    def _add(self, more: Iterable[Tensor]) -> None:
        known = {id(each) for each in self._alive()}
        self._known += [ref(one, self._died) for one in more if id(one) not in known]
        self._known = [each for each in self._known if each() is not None]
        there = [each for each in self._alive() if not each.is_dist() and each._is_initialized()]
        self._at = {each.data_ptr() - each._offset(): ref(each) for each in there}

    def _alive(self) -> list[Tensor]:
        return [found for each in list(self._known) if (found := each()) is not None]

    def _died(self, _: object) -> None:
        self._deaths += 1  # deaths that are counted as one are still told from none
