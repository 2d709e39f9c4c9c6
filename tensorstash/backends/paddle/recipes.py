"""Producers of saved tensors, and their recipes, found in the graph of Paddle while a tensor is packed.

A node of Paddle shows its name, its address and the nodes before it, but neither its saved tensors nor anything that it
could carry for others. So the handles of its operands are those that were noted for the nodes before it, by address.
An address says something only as long as its node lives. That is so while a handle is held by a reader that has an edge
to the node; where another reader gets one, all that was noted until then counts no more.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F  # noqa: N812

from tensorstash.abilities import recipes
from tensorstash.abilities.recipes import Leaf, Recipe
from tensorstash.backends.paddle.backward import Unrecorded
from tensorstash.backends.paddle.eligibility import PARAMETERS
from tensorstash.backends.paddle.layout import elements, rebuilt, spec_of
from tensorstash.backends.paddle.nodes import ACCUMULATION, is_first, kind_of, node_of, reader
from tensorstash.backends.paddle.packed import SETTINGS
from tensorstash.backends.search import NoRecipe, Search, run_again
from tensorstash.host.arrays import as_bytes, borrowed, few_bytes
from tensorstash.host.checksum import checksum
from tensorstash.spec import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The rule to run one operation of Paddle again.

    Args:
        name: in :class:`~tensorstash.policies.recompute.Recompute`.
        node: the name of the node that the operation leaves in the graph.
        operands: number of the node's edges; what is behind each has to be known.
        run: takes the settings by position, then the operands, and returns one output in fresh memory.
        has_settings: whether the operation has settings, which :mod:`tensorstash.backends.paddle.operations` notes.
        mask: whether the last operand is a mask that the operation itself has made and saved.
    """

    name: str
    node: str
    operands: int
    run: Callable[..., Tensor]
    has_settings: bool = False
    mask: bool = False
    is_view: ClassVar[bool] = False


_operators: Any = paddle._C_ops  # its stubs say otherwise than it is


def _batch_norm(*given: Any) -> Tensor:
    is_test, momentum, eps, layout, uses_learned, trains, x, weight, bias = given
    if uses_learned or (is_test and not trains):
        raise ValueError("made with the running statistics, which the graph does not tell")
    # Statistics to be updated that are nobody's.
    nobodys = paddle.zeros_like(weight), paddle.zeros_like(weight)
    made: Tensor
    made, *_ = _operators.batch_norm(x, *nobodys, weight, bias, False, momentum, eps, layout, False, trains)
    return made


def _dropout(*given: Any) -> Tensor:
    p, is_test, mode, _, _, x, mask = given
    if is_test or mode != "upscale_in_train":
        raise ValueError("of a mode that scales in evaluation")
    kept = _operators.full([], float(np.float32(1) - np.float32(p)), x.dtype, x.place)
    return paddle.where(mask.astype("bool"), x / kept, _operators.full([], 0.0, x.dtype, x.place))


def _gelu(*given: Any) -> Tensor:
    return F.gelu(given[-1], *given[:-1])


def _layer_norm(eps: float, axis: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], weight, bias, eps)


RULES: Mapping[str, Rule] = {
    rule.node: rule
    for rule in (
        Rule("mul", "MultiplyGradNode", 2, paddle.multiply),
        Rule("add", "AddGradNode", 2, paddle.add),
        Rule("relu", "ReluGradNode", 1, F.relu),
        Rule("silu", "SiluGradNode", 1, F.silu),
        Rule("glu", "SwigluGradNode", 2, _operators.swiglu),
        Rule("gelu", "GeluGradNode", 1, _gelu, has_settings=True),
        Rule("layer_norm", "LayerNormGradNode", 3, _layer_norm, has_settings=True),
        Rule("batch_norm", "BatchNormGradNode", 3, _batch_norm, has_settings=True),
        Rule("dropout", "DropoutGradNode", 1, _dropout, has_settings=True, mask=True),
    )
}
"""By the name of the node. Nodes do not tell the addend of a product with a number, whether an exponent is whole, the
type of a cast and the shape of a view."""


def _nodes(names: str) -> frozenset[str]:
    return frozenset(f"{name}GradNode" for name in names.split())


READERS = _nodes(
    """
    Abs Add AddN Bmm BatchNorm Cast Ceil Concat Conv2d Conv2dTranspose Conv3d Cos DepthwiseConv2d Divide Dropout Elu Erf
    Exp Expand Flatten Floor Gelu GroupNorm Hardsigmoid Hardswish InstanceNorm LayerNorm LeakyRelu Log LogSoftmax Matmul
    Max Maximum Mean Min Minimum Mish Multiply Pool2d Pow Relu Relu6 Reshape Rsqrt Scale Sigmoid Silu Sin Slice Softmax
    Softplus Split SplitWithNum Sqrt Square Squeeze Stack Subtract Sum Swiglu Swish Tanh Transpose Unbind Unsqueeze
    Where
    """
)
"""Nodes with edges to whatever made the floating-point tensors that they have saved. The tests try each."""

OUTPUTS = READERS - _nodes("Split SplitWithNum Unbind")
"""Nodes whose edges all stand for their first output."""


class Producers(recipes.Producers[Tensor]):
    """The producers of saved tensors, for one session; see :class:`tensorstash.abilities.SupportsProducers`."""

    __slots__ = ("_is_ours", "_notes", "_rules")

    def __init__(self, is_ours: Callable[[object], bool], rules: Sequence[Rule]) -> None:
        self._is_ours = is_ours
        self._rules = {**RULES, **{rule.node: rule for rule in rules}}
        self._notes: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def note(self, tensor: Tensor, spec: TensorSpec, handle: Any, /) -> None:
        if tensor.is_leaf:
            return
        name = reader()
        if name not in READERS or tensor.stop_gradient:
            # Whoever saves it may outlive its producer, and so may all handles that recipes hold for it.
            self.forget()
            return
        key = self._key(tensor)
        if key is not None and self._is_ours(handle):
            self._notes[key] = handle

    def noted(self, tensor: Tensor, spec: TensorSpec, /) -> Any:
        key = None if tensor.is_leaf else self._key(tensor)
        return None if key is None else self._notes.get(key)

    def forget(self) -> None:
        self._notes = WeakValueDictionary()

    def recipe(self, tensor: Tensor, spec: TensorSpec, ops: frozenset[str] | None, depth: int, /) -> Recipe | str:
        node = None if tensor.is_leaf or tensor.stop_gradient else node_of(tensor)
        if node is None:
            return "made outside of the graph"
        if not tensor.place.is_cpu_place():
            return "on a device, where the result of a recipe is not compared"
        if spec.offset or spec.order.span != spec.numel or tensor._holder_size() != spec.nbytes:
            return "part of a larger memory"
        name = reader()
        if name not in READERS:
            return f"saved by {name or 'an unknown operation'}, which may outlive its producer"
        if not _is_first(node, tensor):
            return f"a statistic of {name}"
        return _Search(self._rules, ops, depth, self).recipe(node)

    def whole(self, tensor: Tensor, /) -> Tensor:
        return tensor.detach()  # views have no base here, and a tensor with a recipe fills its memory

    def run(self, recipe: Recipe, values: Sequence[Tensor], spec: TensorSpec, /) -> Tensor:
        with Unrecorded():
            made: Tensor = run_again(recipe.operation, list(values))
            got = spec_of(made)
            if (got.dtype, got.shape, got.strides) != (spec.dtype, spec.shape, spec.strides):
                raise ValueError(f"made {got} with the strides {got.strides}, expected {spec}")
            return made.detach() if got == spec else rebuilt(borrowed(elements(made, got)), spec)

    def part(self, whole: Tensor, spec: TensorSpec, /) -> Tensor:
        with Unrecorded():
            if tuple(whole.shape) == spec.shape and tuple(whole.strides) == spec.strides:
                return whole.detach()
            view: Tensor = paddle.as_strided(whole, list(spec.shape), list(spec.strides), whole._offset() + spec.offset)
            return view

    def are_there(self, tensors: Sequence[Tensor], /) -> bool:
        return all(tensor._is_initialized() for tensor in tensors)

    def sample(self, tensor: Tensor, /) -> Hashable:
        if not tensor.place.is_cpu_place() or not tensor._is_initialized() or 0 in tensor.shape:
            return None
        itemsize = tensor.element_size()
        nbytes = min(prod(tensor.shape) * itemsize, tensor._holder_size() - tensor._offset())
        return few_bytes(tensor.data_ptr(), nbytes, itemsize) if nbytes > 0 else None

    def digest(self, whole: Tensor, /) -> int:
        return checksum(as_bytes(elements(whole, spec_of(whole))))

    def copied(self, tensor: Tensor, most_bytes: int, /) -> Tensor | None:
        if tensor.is_dist() or not tensor.is_dense() or not tensor._is_initialized():
            return None
        if prod(tensor.shape) * tensor.element_size() > most_bytes:
            return None
        with Unrecorded():
            return paddle.assign(tensor).detach()

    def _key(self, tensor: Tensor) -> Hashable:
        """Return the name of an output of the graph among notes; None for one that no recipe can ask for."""
        node = node_of(tensor)
        if node is None:
            return None
        kind, first = kind_of(node), _is_first(node, tensor)
        is_asked_for = kind in OUTPUTS if first else kind in self._rules and self._rules[kind].mask
        return (node.node_ptr(), first) if is_asked_for else None


def _is_first(node: Any, tensor: Tensor) -> bool:
    return is_first(kind_of(node), SETTINGS.get(node.node_ptr()), tensor)


class _Search(Search):
    __slots__ = ()

    def output(self, node: Any, *, is_root: bool = False) -> tuple[Any, int]:
        if node is None:
            raise NoRecipe("an operand that the graph does not know")
        address = node.node_ptr()
        if not is_root and (found := self._noted((address, True))) is not None:
            return found, 0
        kind = kind_of(node)
        if kind == ACCUMULATION:
            leaf = PARAMETERS.leaf_of(node)
            if leaf is None:
                raise NoRecipe("a leaf that is no parameter")
            return self.input(Leaf(leaf)), 0
        rule, settings = self.rule(kind), SETTINGS.get(address)
        if rule.has_settings and settings is None:
            raise NoRecipe(f"{kind} does not tell its settings")
        before = node.next_functions
        if len(before) != rule.operands:
            raise NoRecipe(f"{kind} with other operands than those of the rule")
        operands = [self.output(each) for each in before]
        if rule.mask:
            mask = self._noted((address, False))
            if mask is None:
                raise NoRecipe("a mask that is not saved")
            self.own.append(mask)
            operands.append((mask, 0))
        return self.call(rule, settings.values if settings and rule.has_settings else (), operands)

    def _noted(self, key: Hashable) -> int | None:
        handle = self._producers._notes.get(key)
        return None if handle is None else self.input(handle)
