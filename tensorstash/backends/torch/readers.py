"""The readers of saved tensors, found in the graph of PyTorch, and the accuracy that they need.

``tests/torch/reader_search.py`` measures that again for every version of PyTorch.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from math import isinf
from typing import Any

import torch
from torch import Tensor
from torch._C import _FunctionBase
from torch._C._autograd import SavedTensor, _get_sequence_nr

from tensorstash.backends.readers import listed
from tensorstash.protocols import Demand

CAN_TELL = hasattr(SavedTensor, "data")
"""Whether this PyTorch shows the result of ``pack`` for a saved tensor; if not, every reader stays unknown."""

_SAVES = "_raw_saved_"


@cache
def demand(reader: str) -> Demand:
    """Return the demand of a reader, such as ``"PowBackward0(exponent<1).self"``: ``exact`` unless it is listed."""
    return listed(__file__).get(reader, "exact")


def variant(node: Any) -> str:
    """Return the name of a node's operation, with the setting that changes its demand."""
    name = type(node).__name__
    if name not in _VARYING:
        return name
    attribute, is_changed, change = _VARYING[name]
    return name + change if is_changed(getattr(node, attribute)) else name


_Change = tuple[str, Callable[[Any], bool], str]

_POWER: _Change = "_saved_exponent", lambda value: isinstance(value, complex) or not value >= 1, "(exponent<1)"
_NORM: _Change = "_saved_p", lambda value: isinstance(value, (int, float)) and isinf(value), "(inf)"
_DISTANCE: _Change = "_saved_p", lambda value: bool(value != 2), "(p!=2)"

_VARYING: Mapping[str, _Change] = {
    "PowBackward0": _POWER,
    "LinalgVectorNormBackward0": ("_saved_ord", *_NORM[1:]),
    **dict.fromkeys(("CdistBackward0", "PdistBackward0", "DistBackward0"), _DISTANCE),
    **dict.fromkeys((f"NormBackward{number}" for number in range(4)), _NORM),
}
"""Nodes of which one name does not say it all."""


class Readers:
    """Finds the readers of saved tensors in the graph that one thread records from now on.

    A node is not reachable while its operation saves; it is from later results. So each tensor that is packed shows
    the readers of earlier ones: the graph is walked back from it, over the nodes not walked before. Those of the last
    operations stay unknown, and those of nodes that show nothing: of C++ extensions, of operations in place on views.
    """

    __slots__ = ("_first", "_is_ours", "_walked")

    def __init__(self, is_ours: Callable[[object], bool]) -> None:
        self._is_ours = is_ours
        self._first = _get_sequence_nr()
        self._walked: set[int] = set()

    def visit(self, tensor: Tensor, /) -> list[tuple[Any, Demand]]:
        """Return new handles on the way to ``tensor``, and the demands of their readers.

        Those of the producer of ``tensor`` may come again: it may be about to save more.
        """
        first, walked, found = self._first, self._walked, []
        root: Any = tensor.grad_fn if CAN_TELL else None
        number = -1 if root is None else root._sequence_nr()
        # Not marked as walked: it may be this node that is saving its own result, which it does not show yet.
        waiting = [root] if number >= first and number not in walked else []
        while waiting:
            node = waiting.pop()
            for handle, reader in shown(node, self._is_ours):
                found.append((handle, demand(reader)))
            for before, _ in node.next_functions:
                # The nodes of a thread are numbered. Below the first are those of earlier graphs, or of other threads,
                # which walk them in scopes of their own; that two threads use one number costs knowledge, never
                # correctness.
                if before is not None and (number := before._sequence_nr()) >= first and number not in walked:
                    walked.add(number)
                    waiting.append(before)
        return found


def running(handle: object) -> list[str]:
    """Return where the operation whose backward runs on this thread has saved a handle; none if no backward runs.

    An operation that hides its saved tensors, as those of C++ extensions, is named alone.
    """
    node = torch._C._current_autograd_node() if CAN_TELL else None
    if node is None:
        return []
    return [reader for _, reader in shown(node, lambda other: other is handle)] or [type(node).__name__]


def running_compiled() -> int | None:
    """Return the number of the node whose backward runs on this thread if it is a compiled graph's, else None."""
    node = torch._C._current_autograd_node()
    if node is None or not type(node).__name__.startswith("CompiledFunction"):
        return None
    return int(node._sequence_nr())


def shown(node: Any, is_ours: Callable[[object], bool]) -> list[tuple[object, str]]:
    """Return the handles among the saved tensors of a node, with the names of their readers."""
    found = []
    for name, reader in saves_of(node):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # backward has released its tensors
            continue
        for one in saved if isinstance(saved, (tuple, list)) else (saved,):
            if one is not None and is_ours(handle := one.data):
                found.append((handle, reader))
    return found


def saves_of(node: Any) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a node that show its saved tensors, with the names of the readers."""
    kind: Any = type(node)
    if issubclass(kind, _FunctionBase):
        return (("_raw_saved_tensors", f"{kind.__name__}.tensors"),)
    return _saves_of(kind, variant(node))


@cache
def _saves_of(kind: Hashable, name: str) -> tuple[tuple[str, str], ...]:
    return tuple((save, f"{name}.{save.removeprefix(_SAVES)}") for save in dir(kind) if save.startswith(_SAVES))
