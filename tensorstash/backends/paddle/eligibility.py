"""Saved tensors that must stay as they are, and the reasons."""

import gc
import sys
import threading
from collections.abc import Callable, Iterable
from weakref import ref

from paddle import Tensor
from paddle.base.framework import EagerParamBase

from tensorstash.backends.paddle.layout import dtype_name, is_out_of_reach

_Seen = tuple[int, list[int], int]
"""Scopes entered, references to each class of parameters, deaths: numbers that change when parameters come or go."""


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

    def register(self, parameters: Iterable[Tensor], /) -> None:
        """Learn of parameters, such as those of a model that is wrapped."""
        with self._lock:
            known, seen = self._known
            self._known = known.updated(parameters, known.kinds, self._died), seen

    def parameters(self) -> "Parameters":
        """Return the parameters of the process; the same object as long as nothing has changed."""
        # Instances hold a reference to their class, and classes to their bases, so that the counts tell when
        # parameters have come or gone; one that came as another went is told by the death.
        if self._known[1] != self._seen():
            with self._lock:  # a search under way holds references, too
                seen = self._seen()
                known, known_when = self._known
                if seen != known_when:
                    found = _search(known.kinds) if seen[1:] != known_when[1:] else ([], known.kinds)
                    self._known = known.updated(*found, self._died), seen
        return self._known[0]

    def _seen(self) -> _Seen:
        return self._entries(), [sys.getrefcount(kind) for kind in self._known[0].kinds], self._deaths

    def _died(self, _: object) -> None:
        self._deaths += 1  # deaths that are counted as one are still told from none


class Parameters:
    """The addresses of the known parameters' memory.

    A view of a parameter, such as the transpose that a matrix product saves, remembers nothing of its base.

    Args:
        parameters: that are known.
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

    def updated(self, more: Iterable[Tensor], kinds: list[type], died: "Callable[[ref[Tensor]], None]") -> "Parameters":
        """Return these and others, where they begin now.

        Args:
            more: some of which may be known.
            kinds: their class, and all classes below it.
            died: called when one of them goes.
        """
        known = {id(one) for one in self.alive()}
        kept = [each for each in self._parameters if each() is not None]
        return Parameters(kept + [ref(one, died) for one in more if id(one) not in known], kinds)

    def alive(self) -> list[Tensor]:
        """Return those that are still there."""
        return [found for each in self._parameters if (found := each()) is not None]

    def own(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is a parameter's."""
        known = self._at.get(tensor.data_ptr() - tensor._offset())
        parameter = known() if known is not None else None
        return parameter is not None and parameter._is_shared_buffer_with(tensor)


def _search(known: list[type]) -> tuple[list[Tensor], list[type]]:
    """Return the parameters that the garbage collector finds, and their classes: the same list if these are known.

    Instances refer to their class. The search holds the interpreter lock and gives out nothing else, unlike
    ``gc.get_objects()``, whose list breaks tuples that other threads are just building. What ``gc.freeze()`` has set
    aside it does not find.
    """
    kinds: list[type] = [EagerParamBase]
    for kind in kinds:
        kinds += kind.__subclasses__()
    if kinds == known:
        kinds = known  # or the references that lists hold would look like instances
    return [each for each in gc.get_referrers(*kinds) if isinstance(each, EagerParamBase)], kinds
