"""What made a saved tensor: found in the graph of PyTorch, at the moment at which the tensor is packed.

A node shows what it has saved, and so the handles of its operands; operands that it has not saved are found as outputs
of other nodes, for which a handle was noted or which are followed further. Nothing of the graph is held: a note lies in
the node itself, and refers to its handle weakly.

Attributes of nodes that are no part of PyTorch's documented interface are read here, by the rules beside this file, and
in :mod:`tensorstash.backends.torch.graph`. Where a node has not the one that is wanted, there is no recipe.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Parameter

from tensorstash.abilities.recipes import Leaf
from tensorstash.backends.torch.recipes import RULES
from tensorstash.backends.torch.recipes.rule import Rule

_CAST = "ToCopyBackward0"

_STEPS = 64
"""Nodes, views among them, that are followed for one tensor."""


class Note(NamedTuple):
    """The handle of an output of a node, as it lies in the node's metadata.

    Args:
        handle: a weak reference.
        layout: shape and strides in elements of the output, if the handle is that of a view of it.
        is_input: whether the output can be made of what the handle stands for.
    """

    handle: ref[Any]
    layout: tuple[tuple[int, ...], tuple[int, ...]] | None
    is_input: bool


class _Call(NamedTuple):
    """One operation of a recipe; a number stands for an input, by its place, and None for an operand that is None."""

    rule: Rule
    settings: tuple[Hashable, ...]
    operands: tuple[Any, ...]


class _View(NamedTuple):
    """An input as another layout of the same memory."""

    operand: int
    layout: tuple[tuple[int, ...], tuple[int, ...]]


class _Number(NamedTuple):
    """A number that stands in the program; told apart by how it is written, since 1 == 1.0 and 0.0 == -0.0."""

    written: str
    value: Any


class NoRecipe(Exception):  # noqa: N818  (it is no error)
    """Why there is no recipe."""


def notes(node: Any) -> dict[Any, Any]:
    """Return what a node carries for others, as long as it lives."""
    known: dict[Any, Any] = node.metadata
    return known


class Search:
    """Follows the graph back from one tensor.

    Args:
        key: of the notes that count.
        is_ours: whether an object is a handle that a recipe may have for an input.
        rules: by the name of the node.
        ops: names of the rules that may be used; None for all.
        depth: most operations one after the other.
    """

    __slots__ = ("_depth", "_is_ours", "_key", "_left", "_ops", "_rules", "inputs")

    def __init__(
        self,
        key: object,
        is_ours: Callable[[object], bool],
        rules: Mapping[str, Rule],
        ops: frozenset[str] | None,
        depth: int,
    ) -> None:
        self._key = key
        self._is_ours = is_ours
        self._rules = rules
        self._ops = ops
        self._depth = depth
        self._left = _STEPS
        self.inputs: list[Any] = []

    def output(self, node: Any, number: int, *, is_root: bool = False) -> tuple[Any, int]:
        """Return how an output of a node is made, and in how many operations.

        Raises:
            NoRecipe: it cannot be made again.
        """
        if not is_root:
            if node is None:
                raise NoRecipe("an operand that the graph does not know")
            found = self._noted(node, number)
            if found is not None:
                return found, 0
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            return self._leaf(node.variable), 0
        rule = self._rules.get(kind)
        if rule is None or (rule.output is not None and rule.output != number):
            raise NoRecipe(f"no rule for {kind}")
        if self._ops is not None and not rule.is_view and rule.name not in self._ops:
            raise NoRecipe(f"{rule.name} is not among ops")
        self._left -= 1
        if self._left < 0:
            raise NoRecipe("deeper than depth")
        try:
            settings = rule.settings(node, number)
            if settings is None:
                raise NoRecipe(f"{kind} does not tell its settings")
            operands = [self._operand(node, rule, place) for place in range(len(rule.inputs))]
        except AttributeError as error:
            raise NoRecipe(f"{kind} of this version of PyTorch has no {error.name}") from error
        except RuntimeError as error:  # what it has saved is released
            raise NoRecipe(f"{kind} does not show what it has saved") from error
        levels = max((level for _, level in operands), default=0) + (0 if rule.is_view else rule.weight)
        if levels > self._depth:
            raise NoRecipe("deeper than depth")
        return _Call(rule, settings, tuple(operand for operand, _ in operands)), levels

    def _operand(self, node: Any, rule: Rule, place: int) -> tuple[Any, int]:
        name, optional, which = rule.inputs[place]
        if name:
            shown = getattr(node, f"_raw_saved_{name}")
            kept = (shown if which is None else shown[which]).data
            if isinstance(kept, Tensor):
                if kept.dim() or not kept.is_cpu:
                    raise NoRecipe("an operand that was saved outside of the scope")
                value = kept.item()
                return _Number(repr(value), value), 0
            if kept is not None:
                if not self._is_ours(kept):
                    raise NoRecipe("an operand that was saved under the hooks of others")
                return self._input(kept), 0
        edges = node.next_functions
        before, number = edges[place] if place < len(edges) else (None, 0)
        if before is None and optional:
            return None, 0
        return self.output(before, number)

    def _noted(self, node: Any, number: int) -> Any:
        note = notes(node).get((self._key, number))
        handle = None if note is None else note.handle()
        if note is None or handle is None or not note.is_input:
            return None
        place = self._input(handle)
        return place if note.layout is None else _View(place, note.layout)

    def _leaf(self, tensor: Tensor) -> int:
        if type(tensor) not in (Tensor, Parameter) or not tensor.untyped_storage().nbytes():
            raise NoRecipe("a leaf without memory of its own")
        return self._input(Leaf(tensor))

    def _input(self, value: Any) -> int:
        self.inputs.append(value)
        return len(self.inputs) - 1


def narrow_source(node: Any, dtype: torch.dtype) -> torch.dtype | None:
    """Return the narrower floating-point type that a node has cast to a wider one, whose values it all holds."""
    if type(node).__name__ != _CAST or not dtype.is_floating_point:
        return None
    before, number = node.next_functions[0]
    shown = getattr(before, "_input_metadata", None)
    source: torch.dtype | None = None if shown is None or number >= len(shown) else shown[number].dtype
    return source if source in (torch.float16, torch.bfloat16) and dtype.itemsize > source.itemsize else None


def cast_to(dtype: torch.dtype) -> Hashable:
    """Return the operation that casts the only input of a recipe."""
    return _Call(RULES[_CAST], (dtype,), (0,))


def run_again(operation: Any, values: Sequence[Any]) -> Any:
    """Return what the operation of a recipe makes of its inputs."""
    if type(operation) is _Call:
        return operation.rule.run(*operation.settings, *(run_again(operand, values) for operand in operation.operands))
    if type(operation) is int:
        return values[operation]
    if type(operation) is _View:
        shape, strides = operation.layout
        tensor = values[operation.operand]
        return tensor.as_strided(shape, strides, tensor.storage_offset())
    return operation.value if type(operation) is _Number else None


def rules_of(operation: Any) -> str:
    """Return the rules of an operation as they are nested, without views and inputs."""
    if type(operation) is not _Call:
        return ""
    inner = ", ".join(filter(None, map(rules_of, operation.operands)))
    if operation.rule.is_view:
        return inner
    return f"{operation.rule.name}({inner})" if inner else operation.rule.name
