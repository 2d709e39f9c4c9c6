"""The producer of a saved tensor: found in the graph of Paddle while the tensor is packed.

A node of Paddle shows its name, its address and the nodes before it, but neither its saved tensors nor anything that it
could carry for others. So the handles of its operands are those that were noted for the nodes before it, by address.
An address says something only as long as its node lives. That is so while a handle is held by a reader that has an edge
to the node; where another reader gets one, all that was noted until then counts no more.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple
from weakref import ref

from paddle import Tensor

from tensorstash.abilities.recipes import Leaf
from tensorstash.backends.paddle.eligibility import Parameters
from tensorstash.backends.paddle.nodes import ACCUMULATION, kind_of
from tensorstash.backends.paddle.recipes.rules import Like, Rule
from tensorstash.backends.search import NoRecipe
from tensorstash.backends.search import Search as AnySearch

MASK = "mask"


class Note(NamedTuple):
    """The handle of an output of a node.

    Args:
        handle: a weak reference.
        shape: of the output.
        dtype: of the output.
    """

    handle: ref[Any]
    shape: tuple[int, ...]
    dtype: Any


class _Wanted(NamedTuple):
    """Known properties of an output on the way; None for unknown ones."""

    shape: tuple[int, ...] | None
    dtype: Any

    def operand(self, like: Like) -> "_Wanted":
        return _Wanted(self.shape if like == "same" else None, None if like == "free" else self.dtype)


class Search(AnySearch):
    """Follows the graph back from one tensor.

    Args:
        notes: the handles of nodes' outputs, by address.
        parameters: of the process.
        settings: that operations ran with, by the address of the node.
        rules: by the name of the node.
        ops: names of the rules that may be used; None for all.
        depth: most operations one after the other.
    """

    __slots__ = ("_noted_settings", "_notes", "_parameters")

    def __init__(
        self,
        notes: Mapping[Any, Note],
        parameters: Parameters,
        settings: Mapping[int, tuple[Hashable, ...]],
        rules: Mapping[str, Rule],
        ops: frozenset[str] | None,
        depth: int,
    ) -> None:
        super().__init__(rules, ops, depth)
        self._notes = notes
        self._parameters = parameters
        self._noted_settings = settings

    def made(self, node: Any, tensor: Tensor) -> tuple[Any, int]:
        """Return how a tensor that a node has made is made again, and in how many operations.

        Raises:
            NoRecipe: it cannot be made again.
        """
        return self._output(node, _Wanted(tuple(tensor.shape), tensor.dtype), is_root=True)

    def _output(self, node: Any, wanted: _Wanted, *, is_root: bool = False) -> tuple[Any, int]:
        if node is None:
            raise NoRecipe("an operand that the graph does not know")
        if not is_root and (found := self._noted(node.node_ptr())) is not None:
            return found, 0
        kind = kind_of(node)
        if kind == ACCUMULATION:
            leaf = self._parameters.leaf_of(node)
            if leaf is None:
                raise NoRecipe("a leaf that is no parameter")
            return self.input(Leaf(leaf)), 0
        rule = self.rule(kind)
        return self.call(rule, self._settings(node, kind, rule, wanted), self._operands(node, kind, rule, wanted))

    def _settings(self, node: Any, kind: str, rule: Rule, wanted: _Wanted) -> tuple[Hashable, ...]:
        settings: tuple[Hashable, ...] | None = ()
        if rule.is_view or rule.is_cast:
            known = wanted.shape if rule.is_view else wanted.dtype
            settings = None if known is None else (known,)
        elif rule.has_settings:
            settings = self._noted_settings.get(node.node_ptr())
        if settings is None:
            raise NoRecipe(f"{kind} does not tell its settings")
        return settings

    def _operands(self, node: Any, kind: str, rule: Rule, wanted: _Wanted) -> list[tuple[Any, int]]:
        before = node.next_functions
        if len(before) != len(rule.operands):
            raise NoRecipe(f"{kind} with other operands than those of the rule")
        # A view, whatever shape it makes, keeps the type.
        found = [self._output(each, wanted.operand(like)) for each, like in zip(before, rule.operands, strict=True)]
        if rule.mask:
            mask = self._noted((node.node_ptr(), MASK))
            if mask is None:
                raise NoRecipe("a mask that is not saved")
            self.own.append(mask)
            found.append((mask, 0))
        return found

    def _noted(self, key: Any) -> int | None:
        noted = self._notes.get(key)
        handle = None if noted is None else noted.handle()
        return None if handle is None else self.input(handle)
