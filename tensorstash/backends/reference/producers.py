"""Producers of saved tensors of the reference engine, and their recipes."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from tensorstash.abilities.recipes import Leaf, Recipe
from tensorstash.backends.reference.kernels import DeviceLayouts, empty
from tensorstash.backends.search import Call, NoRecipe, Number, run_again
from tensorstash.backends.search import Search as AnySearch
from tensorstash.host.arrays import as_bytes
from tensorstash.host.checksum import checksum
from tensorstash.reference import Tensor, no_grad
from tensorstash.reference.autograd.primitive import OpNode
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.ops.elementwise import cast
from tensorstash.reference.tensor import AccumulateGrad
from tensorstash.spec import ALIGNMENT, TensorSpec


def _run(operation: Callable[..., Any], attributes: tuple[tuple[str, Hashable], ...], *operands: Any) -> Any:
    return operation(*operands, **dict(attributes))


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The rule to run one operation of the engine again.

    Args:
        name: in :class:`~tensorstash.policies.recompute.Recompute`.
        is_view: whether it returns a view of its first operand.
        run: takes the operation, its attributes, then its operands.
    """

    name: str
    is_view: bool = False
    run: Callable[..., Any] = _run


_SAME_NAMES = ("add", "cast", "clone", "div", "gelu", "mul", "neg", "relu", "sigmoid", "sub", "tanh")
_VIEWS = ("expand_to", "permute_axes", "view_as")

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{name: Rule(name) for name in _SAME_NAMES},
        "power": Rule("pow"),
        **{node: Rule("view", is_view=True) for node in _VIEWS},
    }
)
"""By the operation."""

_NARROW = frozenset({"bfloat16", "float16"})
_SAMPLES = 16


class Producers:
    """The producers of saved tensors, for one session; see :class:`tensorstash.abilities.recipes.Producers`.

    Args:
        is_ours: whether an object is a handle that a recipe may have for an input.
        rules: of plug-ins: objects with the ``name`` of the rule and the ``node`` that it is about.
    """

    __slots__ = ("_is_ours", "_noted", "_rules", "_views")

    def __init__(self, is_ours: Callable[[object], bool], rules: Sequence[Any]) -> None:
        self._is_ours = is_ours
        self._rules = {**RULES, **{rule.node: Rule(rule.name) for rule in rules}}
        self._noted: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
        self._views: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()

    @property
    def lacks(self) -> str:
        """Nothing."""
        return ""

    def note(self, tensor: Tensor, spec: TensorSpec, handle: Any, /) -> None:
        """Remember which handle stands for the output of a node."""
        if tensor.grad_fn is not None:
            self._noted[tensor.grad_fn] = ref(handle)
        if tensor._base is not None and tensor._base.grad_fn is not None:
            self._views.setdefault(tensor._base.grad_fn, ref(handle))

    def noted(self, tensor: Tensor, spec: TensorSpec, /) -> Any:
        """Return the handle that was noted for the whole of a tensor or for a view of it; None without one."""
        node = tensor.grad_fn if tensor._base is None else tensor._base.grad_fn
        known = None if node is None else self._noted.get(node) or self._views.get(node)
        return None if known is None else known()

    def forget(self) -> None:
        """Take nothing that was noted so far for an input any more."""
        self._noted.clear()
        self._views.clear()

    def recipe(self, tensor: Tensor, spec: TensorSpec, ops: frozenset[str] | None, depth: int, /) -> Recipe | str:
        """Return how the whole of a tensor is made again, or why there is no recipe."""
        made = tensor if tensor._base is None else tensor._base
        node = made.grad_fn
        if node is None:
            return "made outside of the graph"
        if made.offset or made.dtype is not tensor.dtype or made.storage.nbytes != made.nbytes:
            return "part of a larger memory"
        search = _Search(self._noted, self._is_ours, self._rules, ops, depth)
        try:
            return search.recipe(search.output(node, is_root=True))
        except NoRecipe as reason:
            return str(reason)

    def narrowed(self, tensor: Tensor, spec: TensorSpec, /) -> tuple[Recipe, Tensor] | None:
        """Return the source of a cast to a wide floating-point type, and the cast."""
        made = tensor if tensor._base is None else tensor._base
        node = made.grad_fn
        edge = node.edges[0] if isinstance(node, OpNode) and node.name == "cast" else None
        source = None if edge is None else edge.node.outputs[edge.output].dtype
        is_whole = not made.offset and made.dtype is tensor.dtype and made.storage.nbytes == made.nbytes
        if source is None or source.name not in _NARROW or source.itemsize >= made.dtype.itemsize or not is_whole:
            return None
        with no_grad():
            narrow = made.detach().astype(source).detach()
        operation = Call(RULES["cast"], (cast, (("dtype", made.dtype),)), (0,))
        return Recipe("narrow", operation, (), 1), narrow

    def whole(self, tensor: Tensor, /) -> Tensor:
        """Return the tensor, or its base if it is a view, detached."""
        return (tensor if tensor._base is None else tensor._base).detach()

    def run(self, recipe: Recipe, values: Sequence[Tensor], spec: TensorSpec, /) -> Tensor:
        """Run the operations of a recipe."""
        with no_grad():
            made = run_again(recipe.operation, values).detach()
            if made.shape != spec.shape or made.dtype.name != spec.dtype:
                raise ValueError(f"made {made.dtype.name}{made.shape}, expected {spec}")
            is_fresh = all(value.storage is not made.storage for value in values)
            if is_fresh and made.strides == spec.strides and not made.offset and _alignment(made) == spec.alignment:
                return made  # type: ignore[no-any-return]
            laid_out = DeviceLayouts().restored(empty((spec.numel,), spec), spec, adopt=False)
            laid_out.copy_(made)
            return laid_out

    def part(self, whole: Tensor, spec: TensorSpec, /) -> Tensor:
        """Return another layout of the memory of ``whole``."""
        with no_grad():
            return whole.as_strided(spec.shape, spec.strides, whole.offset + spec.offset).detach()

    def are_equal(self, one: Tensor, other: Tensor, /) -> bool:
        """Whether two tensors are equal to the bit."""
        return one.dtype is other.dtype and one.host_bits().tobytes() == other.host_bits().tobytes()

    def are_there(self, tensors: Sequence[Tensor], /) -> bool:
        """Return True: nothing is ever freed that somebody holds."""
        return True

    def sample(self, tensor: Tensor, /) -> Hashable:
        """Return a few elements of a tensor in host memory as bytes; None for others."""
        if tensor.device != "cpu" or not tensor.numel:
            return None
        step = max(tensor.numel // _SAMPLES, 1)
        return tensor.carriers().reshape(-1)[::step].tobytes()

    def digest(self, whole: Tensor, /) -> int:
        """Return a checksum of the elements of a tensor."""
        return checksum(as_bytes(whole.host_bits()))

    def require_equal(self, one: Any, other: Any, refuse: Callable[[], Exception], /) -> None:
        """Raise the error of ``refuse`` if two digests differ."""
        if one != other:
            raise refuse()

    def copied(self, tensor: Tensor, most_bytes: int, /) -> Tensor | None:
        """Return a tensor of at most so many bytes in fresh memory, part of no graph; None for larger ones."""
        if tensor.nbytes > most_bytes:
            return None
        with no_grad():
            return tensor.clone().detach()

    def random_state(self, tensor: Tensor, /) -> Hashable:
        """Return the state of NumPy's generator, which programs on this engine draw from."""
        name, keys, *rest = np.random.get_state(legacy=True)
        return name, keys.tobytes(), *rest  # type: ignore[union-attr]

    def set_random_state(self, tensor: Tensor, state: Any, /) -> None:
        """Put the generator back."""
        name, keys, *rest = state
        np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


class _Search(AnySearch[Rule]):
    """Follows the graph back from one tensor; notes are handles by node."""

    __slots__ = ("_is_ours", "_noted")

    def __init__(
        self,
        noted: Mapping[Any, ref[Any]],
        is_ours: Callable[[object], bool],
        rules: Mapping[str, Rule],
        ops: frozenset[str] | None,
        depth: int,
    ) -> None:
        super().__init__(rules, ops, depth)
        self._noted = noted
        self._is_ours = is_ours

    def output(self, node: Any, *, is_root: bool = False) -> tuple[Any, int]:
        noted = None if is_root else self._noted.get(node)
        handle = None if noted is None else noted()
        if handle is not None:
            return self.input(handle), 0
        if isinstance(node, AccumulateGrad):
            return self.input(Leaf(node.variable)), 0
        if not isinstance(node, OpNode):
            raise NoRecipe(f"no rule for {node.name}")
        rule = self.rule(node.name)
        found = [self._operand(node, place) for place in range(len(node.operands))]
        return self.call(rule, (node.operation, _hashable(node.attributes)), found)

    def _operand(self, node: OpNode, place: int) -> tuple[Any, int]:
        saved = node.saved(place)
        if isinstance(saved, SavedTensor):
            if not self._is_ours(saved.packed):
                raise NoRecipe("an operand that was saved under the hooks of others")
            return self.input(saved.packed), 0
        if saved is not None:
            return Number(repr(saved), saved), 0
        edge = node.edges[place]
        if edge is None:
            raise NoRecipe("an operand that the graph does not know")
        return self.output(edge.node)


def _hashable(attributes: Mapping[str, Any]) -> tuple[tuple[str, Hashable], ...]:
    return tuple((name, tuple(each) if isinstance(each, list) else each) for name, each in sorted(attributes.items()))


def _alignment(tensor: Tensor) -> int:
    return tensor.data_ptr() % ALIGNMENT if tensor.numel else 0
