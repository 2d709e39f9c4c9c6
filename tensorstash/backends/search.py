"""The search from a tensor back through the graph to a recipe, as far as all frameworks share it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tensorstash.abilities.recipes import Recipe

_STEPS = 64  # nodes, views among them, that are followed for one tensor

_REMEMBERED = 4096


class Call(NamedTuple):
    """One operation of a recipe; a number stands for an input, by its place, and None for an operand that is None."""

    rule: Any
    settings: tuple[Hashable, ...]
    operands: tuple[Any, ...]


class Number(NamedTuple):
    """A number that stands in the program; told apart by how it is written, since 1 == 1.0 and 0.0 == -0.0."""

    written: str
    value: Any


class NoRecipe(Exception):  # noqa: N818  (it is no error)
    """Why there is no recipe."""


class Search:
    """Follows a graph back from one tensor; a backend adds how its nodes are read.

    The rules go by the name of the node. Each has the ``name`` that :class:`~tensorstash.policies.recompute.Recompute`
    knows it by, a function ``run`` that takes the settings, then the operands, and returns one output, and tells by
    ``is_view`` whether that shares the memory of the operand, which costs nothing.
    """

    __slots__ = ("_depth", "_left", "_ops", "_producers", "_rules", "inputs", "own")

    output: Callable[..., tuple[Any, int]]
    """Returns how an output of a node is made, and in how many operations; raises NoRecipe if it cannot be."""

    def __init__(self, rules: Mapping[str, Any], ops: frozenset[str] | None, depth: int, producers: Any) -> None:
        self._rules, self._ops, self._depth, self._producers = rules, ops, depth, producers
        self._left = _STEPS
        self.inputs: list[Any] = []
        """The operations behind the numbers."""
        self.own: list[int] = []
        """Numbers of those that the operations made themselves."""

    def rule(self, kind: str) -> Any:
        """Return the rule for a node, which is followed now; raise NoRecipe if there is none that may be used."""
        rule = self._rules.get(kind)
        if rule is None:
            raise NoRecipe(f"no rule for {kind}")
        if self._ops is not None and not rule.is_view and rule.name not in self._ops:
            raise NoRecipe(f"{rule.name} is not among ops")
        self._left -= 1
        if self._left < 0:
            raise NoRecipe("deeper than depth")
        return rule

    def call(self, rule: Any, settings: tuple[Hashable, ...], operands: Sequence[tuple[Any, int]]) -> tuple[Call, int]:
        """Return one operation and how many are run for it, those behind its operands among them."""
        levels, given = 0, []
        for operand, behind in operands:
            given.append(operand)
            if behind > levels:
                levels = behind
        levels += not rule.is_view
        if levels > self._depth:
            raise NoRecipe("deeper than depth")
        return Call(rule, settings, tuple(given)), levels

    def input(self, value: Any) -> int:
        """Return the number that stands for a handle or a leaf."""
        self.inputs.append(value)
        return len(self.inputs) - 1

    def recipe(self, *output: Any, settings: Hashable = None) -> Recipe | str:
        """Return the recipe of an output, to be followed under settings of the program; or why there is none."""
        try:
            operation, levels = self.output(*output, is_root=True)
        except NoRecipe as reason:
            return str(reason)
        return Recipe(rules_of(operation), operation, tuple(self.inputs), levels, settings, tuple(self.own))


def run_again(operation: Any, values: Sequence[Any]) -> Any:
    """Return the result of a recipe's operation on its inputs."""
    kind = type(operation)
    if kind is Call:
        operands: list[Any] = []
        for operand in operation.operands:  # most are inputs, which take no frame
            operands.append(values[operand] if type(operand) is int else run_again(operand, values))
        return operation.rule.run(*operation.settings, *operands)
    if kind is int:
        return values[operation]
    return None if operation is None else operation.value


@lru_cache(_REMEMBERED)
def rules_of(operation: Any) -> str:
    """Return the rules of an operation as they are nested, without views and inputs."""
    if type(operation) is not Call:
        return ""
    inner = ", ".join(filter(None, map(rules_of, operation.operands)))
    if operation.rule.is_view:
        return inner
    return f"{operation.rule.name}({inner})" if inner else str(operation.rule.name)
