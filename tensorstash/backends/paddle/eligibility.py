"""Saved tensors that must stay as they are, and the reasons."""

import gc
from collections.abc import Iterable
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary, ref

import paddle
from paddle import Tensor
from paddle.base.framework import EagerParamBase

from tensorstash.backends.paddle.hooks import STACK
from tensorstash.backends.paddle.layout import dtype_name, is_plain
from tensorstash.backends.paddle.nodes import node_of

_STRIDES = "FLAGS_use_stride_kernel"


class Parameters:
    """The parameters of the process, and the reasons why they and other tensors are kept. Thread-safe.

    A view of a parameter, such as the transpose that a matrix product saves, remembers nothing of its base, and is
    known by its memory, which is looked up again in each scope.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._made = 0
        # By address, and by the address of the node; each replaced as a whole, with the state that it was made for.
        self._at: tuple[object, dict[int, ref[Tensor]]] = None, {}
        self._nodes: tuple[object, dict[int, ref[Tensor]]] = None, {}

    def repair(self) -> None:
        """Learn of the parameters that there are, but for those of ``gc.freeze()``, and of each that is made."""
        self.register(each for each in gc.get_objects() if issubclass(type(each), EagerParamBase))
        kind: Any = EagerParamBase
        make = kind.__init__

        @wraps(make)
        def __init__(parameter: Tensor, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            make(parameter, *args, **kwargs)
            self.register([parameter])

        kind.__init__ = __init__

    def register(self, parameters: Iterable[Tensor], /) -> None:
        """Learn of parameters, such as those of a model that is wrapped."""
        for each in parameters:
            self._known[id(each)] = each
            self._made += 1

    def keep_reason(self, tensor: Tensor, /) -> str | None:
        """See :meth:`tensorstash.abilities.Backend.keep_reason`; a parameter comes without its class and attributes."""
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
        dtype = dtype_name(tensor.dtype)
        if dtype is None:
            return "dtype"
        if 0 in tensor.shape:
            return "no elements"
        # Anything else is read and rebuilt with Paddle's kernels for views.
        is_strided = not is_plain(tuple(tensor.shape), tuple(tensor.strides), tensor._offset(), dtype)
        if is_strided and not paddle.get_flags(_STRIDES)[_STRIDES]:
            return "FLAGS_use_stride_kernel is off"
        if is_strided and tensor._offset() % tensor.element_size():
            return "between the elements of its memory"
        known = self._found().get(tensor.data_ptr() - tensor._offset())
        parameter = None if known is None else known()
        is_view = parameter is not None and parameter._is_shared_buffer_with(tensor)
        return "view of a parameter" if is_view else None

    def leaf_of(self, node: Any) -> Tensor | None:
        """Return the parameter whose gradient a node accumulates; None for leaves that are none."""
        at, address = self._found(), node.node_ptr()
        if self._nodes[0] is not at:
            dense = [each for each in self._alive() if not each.stop_gradient and not each.is_dist()]
            self._nodes = at, {made.node_ptr(): ref(each) for each in dense if (made := node_of(each)) is not None}
        known = self._nodes[1].get(address)
        leaf = None if known is None else known()
        own = None if leaf is None else node_of(leaf)
        return leaf if own is not None and own.node_ptr() == address else None

    def _found(self) -> dict[int, ref[Tensor]]:
        """Return where parameters are, looked up if there may be other ones than before, or elsewhere."""
        state, at = self._at
        now = STACK.entries, self._made
        if state != now:
            there = [each for each in self._alive() if not each.is_dist() and each._is_initialized()]
            at = {each.data_ptr() - each._offset(): ref(each) for each in there}
            self._at = now, at
        return at

    def _alive(self) -> list[Tensor]:
        return [found for known in self._known.valuerefs() if (found := known()) is not None]


PARAMETERS = Parameters()
