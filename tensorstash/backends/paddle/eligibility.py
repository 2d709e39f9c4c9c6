"""Which saved tensors must stay as they are, and why."""

import sys
import threading
from collections.abc import Callable
from weakref import ref

from paddle import Tensor
from paddle.base.framework import EagerParamBase

from tensorstash.backends.paddle.layout import dtype_name, is_out_of_reach
from tensorstash.backends.paddle.objects import instances

_Seen = tuple[int, list[int], int]
"""Scopes entered, references to each class of parameters, deaths: what changes when parameters come or go."""


class Kinds:
    """Says why a tensor is kept. Thread-safe.

    Args:
        entries: how many scopes have been entered; addresses of parameters are looked up again in each.
    """

    def __init__(self, entries: Callable[[], int]) -> None:
        self._entries = entries
        self._lock = threading.Lock()
        self._deaths = 0
        # One value, for threads to replace as a whole.
        self._known: tuple[Parameters, _Seen] = Parameters([], [EagerParamBase]), (-1, [], -1)

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
        if self.parameters().own(tensor):
            return "view of a parameter"
        return None

    def parameters(self) -> "Parameters":
        """Return the parameters of the process; the same object as long as nothing has changed."""
        # Instances hold a reference to their class, and classes to their bases, so that the counts tell when
        # parameters have come or gone; one that came as another went is told by the death.
        if self._known[1] != self._seen():
            with self._lock:  # a search under way holds references, too
                seen = self._seen()
                known, known_when = self._known
                if seen != known_when:
                    self._known = known.updated(self._died, _come(known_when, seen)), seen
        return self._known[0]

    def _seen(self) -> _Seen:
        return self._entries(), [sys.getrefcount(kind) for kind in self._known[0].kinds], self._deaths

    def _died(self, _: object) -> None:
        self._deaths += 1  # deaths that are counted as one are still told from none


class Parameters:
    """Where the memory of all parameters of the process begins.

    A view of a parameter, such as the transpose that a matrix product saves, remembers nothing of its base.

    Args:
        parameters: all there are.
        kinds: their class, and all classes below it.
    """

    __slots__ = ("_at", "_parameters", "kinds")

    def __init__(self, parameters: "list[ref[Tensor]]", kinds: list[type]) -> None:
        self.kinds = kinds
        self._parameters = parameters
        self._at: dict[int, ref[Tensor]] = {}
        for parameter in parameters:
            alive = parameter()
            if alive is not None and not alive.is_dist() and alive._is_initialized():
                self._at[alive.data_ptr() - alive._offset()] = parameter

    def updated(self, died: "Callable[[ref[Tensor]], None]", come: set[int]) -> "Parameters":
        """Return where they begin now, and where those begin that have come meanwhile.

        Args:
            died: called when one of them goes.
            come: how many may have come, as far as that can be counted; empty if nothing has changed.
        """
        known = {id(one): one for one in self.alive()}
        kept = [each for each in self._parameters if each() is not None]
        kinds = _classes(EagerParamBase)
        if not come:
            found = []
        elif kinds != self.kinds:
            found = instances(kinds)
        else:
            kinds = self.kinds  # or the references that lists hold would look like instances
            found = instances(kinds, lambda young: sum(id(one) not in known for one in young) in come)
        return Parameters(kept + [ref(one, died) for one in found if id(one) not in known], kinds)

    def alive(self) -> list[Tensor]:
        """Return those that are still there."""
        return [found for each in self._parameters if (found := each()) is not None]

    def own(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is a parameter's."""
        known = self._at.get(tensor.data_ptr() - tensor._offset())
        parameter = known() if known is not None else None
        return parameter is not None and parameter._is_shared_buffer_with(tensor)


def _come(before: _Seen, now: _Seen) -> set[int]:
    """Return how many parameters may have come; nothing if none has.

    In Paddle 3.3, those that go leave the reference to their class.
    """
    more = sum(now[1]) - sum(before[1])
    return {more, more + now[2] - before[2]} if now[1:] != before[1:] else set()


def _classes(root: type) -> list[type]:
    found = [root]
    for kind in found:
        found += kind.__subclasses__()
    return found
