"""Producers of saved tensors of the reference engine, and their recipes."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np

from tensorstash.abilities import recipes
from tensorstash.abilities.recipes import Leaf, Recipe
from tensorstash.backends.reference.devices import laid_out
from tensorstash.backends.search import NoRecipe, Number, Search, run_again
from tensorstash.host.arrays import as_bytes
from tensorstash.host.checksum import checksum
from tensorstash.reference import Tensor, no_grad
from tensorstash.reference.autograd.primitive import OpNode
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.tensor import AccumulateGrad
from tensorstash.spec import TensorSpec


def _run(operation: Callable[..., Any], attributes: tuple[tuple[str, Hashable], ...], *operands: Any) -> Any:
    return operation(*operands, **dict(attributes))


class Rule(NamedTuple):
    """The rule to run one operation again."""

    name: str
    is_view: bool = False
    run: Callable[..., Any] = _run


RULES: Mapping[str, Rule] = {name: Rule(name) for name in ("add", "cast", "clone", "gelu", "mul", "relu")}
"""By the operation."""


class Producers(recipes.Producers[Tensor]):
    """The producers of saved tensors, for one session; see :class:`tensorstash.abilities.SupportsProducers`.

    Rules of plug-ins are objects with the ``name`` of the rule and the ``node`` that it is about.
    """

    __slots__ = ("_is_ours", "_noted", "_rules")

    def __init__(self, is_ours: Callable[[object], bool], rules: Sequence[Any]) -> None:
        self._is_ours = is_ours
        self._rules = {**RULES, **{rule.node: Rule(rule.name) for rule in rules}}
        self._noted: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()

    def note(self, tensor: Tensor, spec: TensorSpec, handle: Any, /) -> None:
        if tensor.grad_fn is not None:
            self._noted[tensor.grad_fn] = ref(handle)

    def noted(self, tensor: Tensor, spec: TensorSpec, /) -> Any:
        known = None if tensor.grad_fn is None else self._noted.get(tensor.grad_fn)
        return None if known is None else known()

    def forget(self) -> None:
        self._noted.clear()

    def recipe(self, tensor: Tensor, spec: TensorSpec, ops: frozenset[str] | None, depth: int, /) -> Recipe | str:
        if tensor.grad_fn is None:
            return "made outside of the graph"
        if tensor.storage.nbytes != tensor.nbytes:
            return "part of a larger memory"
        return _Search(self._rules, ops, depth, self).recipe(tensor.grad_fn)

    def whole(self, tensor: Tensor, /) -> Tensor:
        return tensor.detach()

    def run(self, recipe: Recipe, values: Sequence[Tensor], spec: TensorSpec, /) -> Tensor:
        with no_grad():
            made = run_again(recipe.operation, values)
            if made.shape != spec.shape or made.dtype.name != spec.dtype:
                raise ValueError(f"made {made.dtype.name}{made.shape}, expected {spec}")
            whole = laid_out(np.empty(spec.order.shape, spec.carrier), spec)
            whole.storage.write(whole.layout, whole.dtype, made.carriers())
            return whole

    def part(self, whole: Tensor, spec: TensorSpec, /) -> Tensor:
        with no_grad():
            return whole.as_strided(spec.shape, spec.strides, whole.offset + spec.offset).detach()

    def sample(self, tensor: Tensor, /) -> Hashable:
        if tensor.device != "cpu":
            return None
        return tensor.carriers().reshape(-1)[:: max(tensor.numel // 16, 1)].tobytes()

    def digest(self, whole: Tensor, /) -> int:
        return checksum(as_bytes(whole.host_bits()))

    def copied(self, tensor: Tensor, most_bytes: int, /) -> Tensor | None:
        return None if tensor.nbytes > most_bytes else tensor.detach().clone()


class _Search(Search):
    __slots__ = ()

    def output(self, node: Any, *, is_root: bool = False) -> tuple[Any, int]:
        noted = None if is_root else self._producers._noted.get(node)
        handle = None if noted is None else noted()
        if handle is not None:
            return self.input(handle), 0
        if isinstance(node, AccumulateGrad):
            return self.input(Leaf(node.variable)), 0
        if not isinstance(node, OpNode):
            raise NoRecipe(f"no rule for {node.name}")
        rule = self.rule(node.name)
        found = [self._operand(node, place) for place in range(len(node.edges))]
        return self.call(rule, (node.operation, _hashable(node.attributes)), found)

    def _operand(self, node: OpNode, place: int) -> tuple[Any, int]:
        saved = node.saved(place)
        if isinstance(saved, SavedTensor):
            if not self._producers._is_ours(saved.packed):
                raise NoRecipe("an operand that was saved under the hooks of others")
            return self.input(saved.packed), 0
        if saved is not None:
            return Number(repr(saved), saved), 0
        before = node.edges[place]
        if before is None:
            raise NoRecipe("an operand that the graph does not know")
        return self.output(before)


def _hashable(attributes: Mapping[str, Any]) -> tuple[tuple[str, Hashable], ...]:
    return tuple((name, tuple(each) if isinstance(each, list) else each) for name, each in sorted(attributes.items()))
