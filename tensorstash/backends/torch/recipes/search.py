"""The producer of a saved tensor: found in the graph of PyTorch while the tensor is packed.

A node shows its saved tensors, and so the handles of its operands; operands that it has not saved are found as outputs
of other nodes, for which a handle was noted or which are followed further. Nothing of the graph is held: a note lies in
the node itself, and refers to its handle weakly.

Attributes of nodes that are no part of PyTorch's documented interface are read here, by the rules beside this file, and
in :mod:`tensorstash.backends.torch.readers`. Where a node has not the one that is wanted, there is no recipe.
"""

from typing import Any

from torch import Tensor
from torch.nn import Parameter

from tensorstash.abilities.recipes import Leaf
from tensorstash.backends.search import NoRecipe, Number
from tensorstash.backends.search import Search as AnySearch


class Search(AnySearch):
    """Follows the graph back from one tensor."""

    __slots__ = ()

    def output(self, node: Any, number: int, *, is_root: bool = False) -> tuple[Any, int]:
        """Return how an output of a node is made, and in how many operations; raise NoRecipe if it cannot be."""
        if not is_root:
            if node is None:
                raise NoRecipe("an operand that the graph does not know")
            note = node.metadata.get((self._producers.key, number))
            handle = None if note is None else note()
            if handle is not None:
                return self.input(handle), 0
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            return self._leaf(node.variable), 0
        rule = self.rule(kind)
        if number:
            raise NoRecipe(f"no rule for {kind}")
        try:
            settings = rule.settings(node)
            if settings is None:
                raise NoRecipe(f"{kind} does not tell its settings")
            operands = []
            for place, each in enumerate(rule.inputs):
                operands.append(self._operand(node, place, *each))
        except AttributeError as error:
            raise NoRecipe(f"{kind} of this version of PyTorch has no {error.name}") from error
        except RuntimeError as error:  # its saved tensors are released
            raise NoRecipe(f"{kind} hides its saved tensors") from error
        return self.call(rule, settings, operands)

    def _operand(self, node: Any, place: int, name: str, optional: bool, which: int | None) -> tuple[Any, int]:
        if name:
            shown = getattr(node, f"_raw_saved_{name}")
            kept = (shown if which is None else shown[which]).data
            if isinstance(kept, Tensor):
                if kept.dim() or not kept.is_cpu:
                    raise NoRecipe("an operand that was saved outside of the scope")
                value = kept.item()
                return Number(repr(value), value), 0
            if kept is not None:
                if not self._producers.is_ours(kept):
                    raise NoRecipe("an operand that was saved under the hooks of others")
                self.inputs.append(kept)  # as :meth:`input` does, without its frame
                found = len(self.inputs) - 1
                if name.startswith("result"):  # PyTorch's name for what the operation has returned
                    self.own.append(found)
                return found, 0
        edges = node.next_functions
        before, number = edges[place] if place < len(edges) else (None, 0)
        if before is None and optional:
            return None, 0
        return self.output(before, number)

    def _leaf(self, tensor: Tensor) -> int:
        if type(tensor) not in (Tensor, Parameter) or not tensor.untyped_storage().nbytes():
            raise NoRecipe("a leaf without memory of its own")
        return self.input(Leaf(tensor))
