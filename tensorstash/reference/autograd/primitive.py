"""Primitive operations: a NumPy kernel beside the formulas of its derivative.

A formula computes the gradient of one operand. Its parameter names *are* the declaration of saved values, as in
PyTorch's ``derivatives.yaml``: ``g`` is the gradient of the result, an operand or ``out`` (the result) is saved for
backward, ``_meta`` after the name of an operand asks for its shape, type and device alone, and any other name is a
keyword argument of the kernel. Formulas are written in differentiable operations, so derivatives of every order follow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, MethodType
from typing import Any, TypeAlias

import numpy as np

from tensorstash.reference.autograd.graph import Meta, Node, is_grad_enabled
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.errors import DeviceError
from tensorstash.reference.storage.dtypes import Array, DType, as_dtype
from tensorstash.reference.storage.layout import Layout
from tensorstash.reference.storage.memory import adopt_array, memory
from tensorstash.reference.storage.streams import driver
from tensorstash.reference.tensor import Tensor

Formula: TypeAlias = Callable[..., Tensor]
Operand: TypeAlias = "Tensor | complex"


class Operation:
    """A function of operands (positional) and attributes (keyword-only), with a formula of each differentiable operand.

    It is recorded with the operands and the result that its formulas name.
    """

    __call__: Callable[..., Tensor]

    def __init__(self, name: str, function: Callable[..., Any], formulas: Mapping[str, Formula]) -> None:
        parameters = inspect.signature(function).parameters.values()
        self.__name__, self.__doc__ = name, function.__doc__
        self.function, self.formulas = function, formulas
        self.operands = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self.needs = {operand: tuple(inspect.signature(formula).parameters) for operand, formula in formulas.items()}

    def __get__(self, tensor: Tensor | None, owner: type | None = None) -> Callable[..., Tensor]:
        """Bind as a function does, so that a class may have the operation for a method."""
        return self if tensor is None else MethodType(self, tensor)

    def record(self, operands: Sequence[Operand], attributes: dict[str, Any], out: Tensor) -> Tensor:
        """Return `out`, with its history if this thread records and a differentiable operand requires grad."""
        if is_grad_enabled() and out.dtype.is_differentiable and self.formulas:
            pairs = zip(self.operands, operands, strict=True)
            edges = [x.node if isinstance(x, Tensor) and name in self.formulas else None for name, x in pairs]
            if any(edges):
                out._node = OpNode(self, edges, operands, attributes, out)
        return out


class OpNode(Node):
    """A recorded operation; ``attributes`` are the keyword arguments of its function."""

    __slots__ = ("_metas", "_saved", "attributes", "operation")

    def __init__(
        self,
        operation: Operation,
        edges: Sequence[Node | None],
        operands: Sequence[Any],
        attributes: dict[str, Any],
        out: Tensor,
    ) -> None:
        super().__init__(edges)
        self.operation = operation
        self.attributes: Mapping[str, Any] = MappingProxyType(attributes)
        named = dict(zip(operation.operands, operands, strict=True))
        self._metas = {f"{name}_meta": x.meta for name, x in named.items() if isinstance(x, Tensor)}
        wanted = (name for name, edge in zip(named, edges, strict=True) if edge is not None)
        used = {need for name in wanted for need in operation.needs[name]}
        self._saved: dict[str, Any] = {
            name: SavedTensor(x) if isinstance(x, Tensor) else x for name, x in named.items() if name in used
        }
        if "out" in used:
            self._saved["out"] = SavedTensor(out, is_output=True)

    @property
    def name(self) -> str:
        return self.operation.__name__

    def saved(self, position: int) -> Any:
        """Give the saved value of an operand: a `SavedTensor`, or a number as it is; None if nothing is."""
        return self._saved.get(self.operation.operands[position])

    def apply(self, gradient: Tensor) -> Sequence[Tensor | None]:
        values = {**self._metas, **self.attributes, "g": gradient}
        values |= {name: x.unpack(self) if isinstance(x, SavedTensor) else x for name, x in self._saved.items()}
        found: list[Tensor | None] = [None] * len(self.edges)
        for place, name in enumerate(self.operation.operands):
            if self.edges[place] is not None:
                result = self.operation.formulas[name](*(values[need] for need in self.operation.needs[name]))
                found[place] = conform(result, self._metas[f"{name}_meta"])
        return found

    def release(self) -> None:
        for value in self._saved.values():
            if isinstance(value, SavedTensor):
                value.release()


def conform(gradient: Tensor, meta: Meta) -> Tensor:
    """Sum a gradient over dimensions that broadcasting repeated, and give it the type of its operand."""
    summed = gradient if gradient.shape == meta.shape else gradient.sum_to(shape=meta.shape)
    conformed: Tensor = summed.astype(meta.dtype)
    return conformed


class Primitive(Operation):
    """An operation that computes new elements by a kernel on arrays.

    An attribute named ``dtype`` or ``device`` is that of the result. A kernel that only ``moves`` elements may have any
    type of them.
    """

    def __init__(self, name: str, kernel: Callable[..., Any], *, moves: bool = False, **formulas: Formula) -> None:
        super().__init__(name, kernel, formulas)
        self._moves = moves
        # Those that have the type of the result: the ones with a formula, or all if none has one.
        self._is_data = [not formulas or operand in formulas for operand in self.operands]

    def __call__(self, *operands: Operand, **attributes: Any) -> Tensor:
        """Compute, and record if an operand requires grad; tensors must agree in device and element type."""
        tensors = [x for x in operands if isinstance(x, Tensor)]
        devices = {x.device: None for x in tensors}
        if len(devices) != 1:
            raise DeviceError(f"{self.__name__} needs its tensors on one device, got {' and '.join(devices) or 'none'}")
        space = memory(attributes.get("device", tensors[0].device))
        common = self._common_dtype(operands)
        launch = None if space.is_host else driver().launch
        if launch is not None:
            out: Tensor = launch(self, operands, attributes, space, common)
        else:
            stored = [x._read() if isinstance(x, Tensor) else None for x in operands]
            result, dtype = self.compute(stored, operands, common, attributes)
            out = Tensor(*adopt_array(result, space), dtype)
        return self.record(operands, attributes, out)

    def compute(
        self, stored: Sequence[Array | None], operands: Sequence[Any], common: DType, attributes: dict[str, Any]
    ) -> tuple[Array, DType]:
        """Run the kernel on stored elements; ``operands`` give their types, or are numbers where there are none."""
        pairs = zip(operands, stored, strict=True)
        arrays = [np.asarray(x).astype(common.carrier) if array is None else array for x, array in pairs]
        with np.errstate(all="ignore"):
            result = np.asarray(self.function(*arrays, **attributes))
            if self._moves:
                return result, common
            dtype = as_dtype(attributes.get("dtype", result.dtype))
            if not (common.is_computed and dtype.is_computed):
                raise TypeError(f"{self.__name__} computes, which NumPy does not do in bfloat16")
            return result.astype(dtype.carrier, copy=False), dtype

    def _common_dtype(self, operands: Sequence[Operand]) -> DType:
        data = [x for x, is_data in zip(operands, self._is_data, strict=True) if is_data]
        dtypes = {x.dtype.name: x.dtype for x in data if isinstance(x, Tensor)}
        if len(dtypes) > 1:
            raise TypeError(f"{self.__name__} got tensors of {' and '.join(dtypes)}; use astype() on all but one")
        (common,) = dtypes.values()
        for x in (x for x in data if not isinstance(x, Tensor)):
            if np.ndim(x) or not np.can_cast(np.min_scalar_type(x), common.carrier, "same_kind"):
                cure = "tensor() on the array" if np.ndim(x) else "astype() on the tensor"
                raise TypeError(f"{self.__name__} got {x!r} and a tensor of {common}; use {cure}")
        return common


class ViewPrimitive(Operation):
    """An operation that gives another layout, made of the operand's and of attributes, over the same storage."""

    def __init__(self, name: str, relayout: Callable[..., Layout], **formulas: Formula) -> None:
        super().__init__(name, relayout, formulas)

    def __call__(self, operand: Tensor, **attributes: Any) -> Tensor:
        view = operand.view_of(self.function(operand.layout, **attributes))
        return self.record((operand,), attributes, view)


def primitive(*, moves: bool = False, **formulas: Formula) -> Callable[[Callable[..., Any]], Primitive]:
    """Make an operation of a NumPy kernel and its formulas; see the module for the names of a formula."""
    return lambda kernel: Primitive(kernel.__name__, kernel, moves=moves, **formulas)
