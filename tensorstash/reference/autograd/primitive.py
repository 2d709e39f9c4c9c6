"""Primitive operations: a NumPy kernel beside the formulas of its derivative.

A formula computes the gradient of one operand. Its parameter names *are* the declaration of saved values, as in
PyTorch's ``derivatives.yaml``:

=====================  ==========================================================================
name                   value
=====================  ==========================================================================
``g``                  the gradient of the result
an operand             that operand, saved for backward (a Python number is passed as it is)
an operand + ``_meta`` its shape, type and device; its elements are not saved
``out``                the result, saved for backward
an attribute           that keyword argument of the kernel
``i``                  the position within a variadic operand
=====================  ==========================================================================

Formulas are written in differentiable operations, so derivatives of every order follow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, MethodType
from typing import Any, TypeAlias

import numpy as np

from tensorstash.reference.autograd.graph import Edge, Meta, Node, is_grad_enabled
from tensorstash.reference.autograd.saved import SavedTensor
from tensorstash.reference.errors import DeviceError
from tensorstash.reference.storage.dtypes import Array, DType, as_dtype, float32, promote_number
from tensorstash.reference.storage.layout import Layout
from tensorstash.reference.storage.memory import Storage, adopt_array, memory, result_layout
from tensorstash.reference.storage.streams import current_stream, is_asynchronous
from tensorstash.reference.tensor import Tensor

Formula: TypeAlias = Callable[..., "Tensor | None"]
Operand: TypeAlias = "Tensor | complex"


class Signature:
    """The names of a kernel's operands and attributes, and those that each formula needs."""

    def __init__(self, name: str, kernel: Callable[..., Any], formulas: dict[str, Formula]) -> None:
        parameters = inspect.signature(kernel).parameters.values()
        self.name = name
        self.operands = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.defaults = {p.name: p.default for p in keywords if p.default is not p.empty}
        self.formulas = formulas
        self.needs = {operand: tuple(inspect.signature(f).parameters) for operand, f in formulas.items()}

    def role(self, position: int) -> str:
        """Give the name of the operand at `position`; a variadic operand takes all that follow."""
        return self.operands[min(position, len(self.operands) - 1)]

    def is_data(self, position: int) -> bool:
        """Whether the operand takes part in type promotion: those with a formula, or all if none has one."""
        return not self.formulas or self.role(position) in self.formulas

    def is_variadic(self, operand: str) -> bool:
        return self.variadic and operand == self.operands[-1]


class OpNode(Node[Tensor]):
    """A recorded primitive with the operands and the result that its formulas name."""

    __slots__ = ("_attributes", "_metas", "_saved", "_signature", "operation")

    def __init__(
        self,
        operation: Primitive | ViewPrimitive,
        edges: Sequence[Edge[Tensor] | None],
        operands: Sequence[Any],
        attributes: dict[str, Any],
        out: Tensor,
    ) -> None:
        super().__init__(edges, (out.meta,))
        self.operation = operation
        self._signature = signature = operation.signature
        self._attributes = attributes
        self._metas = tuple(x.meta if isinstance(x, Tensor) else None for x in operands)
        used = {n for k, e in enumerate(edges) if e is not None for n in signature.needs[signature.role(k)]}
        self._saved: dict[str, list[Any]] = {}
        for position, operand in enumerate(operands):
            if signature.role(position) in used:
                value = SavedTensor(operand) if isinstance(operand, Tensor) else operand
                self._saved.setdefault(signature.role(position), []).append(value)
        if "out" in used:
            self._saved["out"] = [SavedTensor(out, 0)]

    @property
    def name(self) -> str:
        return self._signature.name

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands, by position."""
        return tuple(self._signature.role(position) for position in range(len(self.edges)))

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The keyword arguments of the kernel."""
        return MappingProxyType(self._attributes)

    def saved(self, position: int) -> Any:
        """Give the saved value of an operand: a `SavedTensor`, or a number as it is; None if nothing is."""
        role = self._signature.role(position)
        values = self._saved.get(role)
        return None if values is None else values[position - self._signature.operands.index(role)]

    def apply(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        (g,) = gradients
        if g is None:
            return [None] * len(self.edges)
        values: dict[str, Any] = {**self._attributes, "g": g}
        for name, saved in self._saved.items():
            unpacked = [x.unpack(self) if isinstance(x, SavedTensor) else x for x in saved]
            values[name] = tuple(unpacked) if self._signature.is_variadic(name) else unpacked[0]
        return [self._gradient(position, values) for position in range(len(self.edges))]

    def _gradient(self, position: int, values: dict[str, Any]) -> Tensor | None:
        meta = self._metas[position]
        if self.edges[position] is None or meta is None:
            return None
        role = self._signature.role(position)
        values["i"] = position - self._signature.operands.index(role)
        arguments = [self._value(name, values) for name in self._signature.needs[role]]
        result = self._signature.formulas[role](*arguments)
        return None if result is None else conform(result, meta)

    def _value(self, name: str, values: dict[str, Any]) -> Any:
        if name in values:
            return values[name]
        operand = name.removesuffix("_meta")
        first = self._signature.operands.index(operand)
        return self._metas[first:] if self._signature.is_variadic(operand) else self._metas[first]

    def release(self) -> None:
        for values in self._saved.values():
            for value in values:
                if isinstance(value, SavedTensor):
                    value.release()


def conform(gradient: Tensor, meta: Meta) -> Tensor:
    """Sum a gradient over dimensions that broadcasting repeated, and give it the type of its operand."""
    if gradient.shape != meta.shape:
        gradient = gradient.sum_to(meta.shape)
    return gradient if gradient.dtype is meta.dtype else gradient.astype(meta.dtype)


class Primitive:
    """An operation that computes new elements.

    Args:
        name: of the operation.
        kernel: from operand arrays (positional) and attributes (keyword-only) to an array. An attribute named
            ``dtype`` or ``device`` is that of the result.
        moves: the kernel moves stored elements bit for bit, and so sees carriers, not compute elements.
        floating: integers are promoted to float32 first.
        formulas: gradient of each differentiable operand.
    """

    def __init__(
        self, name: str, kernel: Callable[..., Any], *, moves: bool = False, floating: bool = False, **formulas: Formula
    ) -> None:
        self.signature = Signature(name, kernel, formulas)
        self.kernel, self._moves, self._floating = kernel, moves, floating
        self.__name__, self.__doc__ = name, kernel.__doc__

    def __get__(self, tensor: Tensor | None, owner: type | None = None) -> Callable[..., Tensor]:
        """Bind as a function does, so that a class may have the operation for a method."""
        return self if tensor is None else MethodType(self, tensor)

    def __call__(self, *operands: Operand, **attributes: Any) -> Tensor:
        """Compute, and record if an operand requires grad.

        Raises:
            DeviceError: the operands lie on different devices.
            TypeError: they are of different element types.
        """
        attributes = {**self.signature.defaults, **attributes}
        device = attributes.get("device") or _common_device(self.signature.name, operands)
        common = self._common_dtype(operands)
        if is_asynchronous() and not memory(device).is_host:
            out = self._submit(operands, attributes, device, common)
        else:
            stored, dtype = self._compute([_values(x) for x in operands], operands, common, attributes)
            storage, layout = adopt_array(stored, memory(device))
            out = Tensor(storage, layout, dtype)
        record(self, operands, attributes, out)
        return out

    def _submit(self, operands: Sequence[Operand], attributes: dict[str, Any], device: str, common: DType) -> Tensor:
        """Have the device compute later; a run on zeros shows shape and type now."""
        sample, dtype = self._compute([_zeros(x) for x in operands], operands, common, attributes)
        layout = result_layout(sample)
        space = memory(device)
        out = Tensor(Storage.allocate(sample.nbytes, space), layout, dtype)
        target = out.carriers()
        # Arrays, not tensors: work does not keep memory from being freed and used again, no more than on a device.
        values = [_values(x, snapshot=True) for x in operands]
        signatures = [x.meta if isinstance(x, Tensor) else x for x in operands]

        def work() -> None:
            target[...] = self._compute(values, signatures, common, attributes)[0]

        current_stream(device).submit(work)
        return out

    def _compute(
        self, values: Sequence[Array | None], operands: Sequence[Any], common: DType, attributes: dict[str, Any]
    ) -> tuple[Array, DType]:
        """Run the kernel on stored elements; ``operands`` give their types."""
        arrays = [self._array(k, x, v, common) for k, (x, v) in enumerate(zip(operands, values, strict=True))]
        with np.errstate(all="ignore"):
            result = np.asarray(self.kernel(*arrays, **attributes))
            dtype = self._result_dtype(result, common, attributes)
            return (result if self._moves else dtype.encode(result)), dtype

    def _common_dtype(self, operands: Sequence[Operand]) -> DType:
        data = [x for k, x in enumerate(operands) if self.signature.is_data(k)]
        dtypes = {x.dtype.name: x.dtype for x in data if isinstance(x, Tensor)}
        if len(dtypes) > 1:
            raise TypeError(f"{self.signature.name} got tensors of {' and '.join(dtypes)}; use astype() on all but one")
        common = next(iter(dtypes.values()), None)
        for operand in data:
            if not isinstance(operand, Tensor):
                common = promote_number(common, _number(operand))
        if common is None:
            raise TypeError(f"{self.signature.name} needs a tensor")
        return float32 if self._floating and not common.is_differentiable else common

    def _array(self, position: int, operand: Any, stored: Array | None, common: DType) -> Array:
        if stored is None:
            if not self.signature.is_data(position):
                return np.asarray(operand)
            number = np.asarray(_number(operand)).astype(common.compute)
            return common.encode(number) if self._moves else number
        if not self.signature.is_data(position):
            return stored
        if self._moves and operand.dtype is common:
            return stored
        values = operand.dtype.decode(stored).astype(common.compute, copy=False)
        return common.encode(values) if self._moves else values

    def _result_dtype(self, result: Array, common: DType, attributes: dict[str, Any]) -> DType:
        if "dtype" in attributes:
            return as_dtype(attributes["dtype"])
        if self._moves or result.dtype == common.compute:
            return common
        return as_dtype(result.dtype)


class ViewPrimitive:
    """An operation that gives another layout over the same storage.

    Args:
        name: of the operation.
        relayout: from the operand's layout and keyword attributes to the layout of the view.
        formulas: gradient of the operand.
    """

    def __init__(self, name: str, relayout: Callable[..., Layout], **formulas: Formula) -> None:
        self.signature = Signature(name, relayout, formulas)
        self._relayout = relayout

    def __call__(self, operand: Tensor, **attributes: Any) -> Tensor:
        """Make the view, and record it if the operand requires grad."""
        attributes = {**self.signature.defaults, **attributes}
        view = operand.view_of(self._relayout(operand.layout, **attributes), tracked=is_grad_enabled())
        record(self, (operand,), attributes, view)
        return view


def primitive(*, moves: bool = False, **formulas: Formula) -> Callable[[Callable[..., Any]], Primitive]:
    """Make an operation of a NumPy kernel and its formulas; see the module's table for the names of a formula."""
    return lambda kernel: Primitive(kernel.__name__, kernel, moves=moves, floating=False, **formulas)


def record(
    operation: Primitive | ViewPrimitive, operands: Sequence[Operand], attributes: dict[str, Any], out: Tensor
) -> None:
    """Give `out` its history, if this thread records and a differentiable operand requires grad."""
    signature = operation.signature
    if not (is_grad_enabled() and out.dtype.is_differentiable and signature.formulas):
        return
    edges = [
        x.edge if isinstance(x, Tensor) and signature.role(k) in signature.formulas else None
        for k, x in enumerate(operands)
    ]
    if any(edge is not None for edge in edges):
        node = OpNode(operation, edges, operands, attributes, out)
        out._edge = Edge(node, 0)


def _values(operand: Any, *, snapshot: bool = False) -> Array | None:
    """Return the stored elements of a tensor, those of host memory as they are now if ``snapshot``."""
    if not isinstance(operand, Tensor):
        return None
    if operand.storage.space.is_host:
        return operand.carriers().copy() if snapshot else operand.carriers()
    if not snapshot:
        current_stream(operand.device).synchronize()
    return operand.carriers()


def _zeros(operand: Any) -> Array | None:
    if not isinstance(operand, Tensor):
        return None
    carrier = operand.dtype.carrier
    layout = operand.layout
    nbytes = layout.end - layout.begin if operand.numel else 0
    return np.ndarray(
        operand.shape, carrier, np.zeros(nbytes, np.uint8), layout.offset - layout.begin, layout.byte_strides
    )


def _number(operand: Any) -> complex:
    value = operand.item() if isinstance(operand, np.generic) else operand
    if not isinstance(value, bool | int | float | complex):
        raise TypeError(f"an operand must be a tensor or a number, got {type(operand).__name__}")
    return value


def _common_device(name: str, operands: Sequence[Operand]) -> str:
    devices = {x.device: None for x in operands if isinstance(x, Tensor)}
    if len(devices) != 1:
        raise DeviceError(f"{name} needs its tensors on one device, got {' and '.join(devices)}")
    return next(iter(devices))
