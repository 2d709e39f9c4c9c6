"""The tensor: elements at a layout of a storage, and its place in the recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorstash.reference.autograd.graph import Meta, Node, is_grad_enabled
from tensorstash.reference.errors import DeviceError, InplaceError
from tensorstash.reference.storage.dtypes import Array, DType
from tensorstash.reference.storage.layout import Layout, Shape
from tensorstash.reference.storage.memory import Storage
from tensorstash.reference.storage.streams import current_stream


class Tensor:
    """Elements of one type at a layout of a storage, which is shared, never copied, with gradient recording.

    Build one with `tensor`, `from_buffer` or `full`. Reading is thread-safe; writing in place is not.
    """

    __slots__ = (
        "__weakref__", "_is_view", "_node", "_requires_grad", "_viewed", "base", "dtype", "grad", "layout", "storage",
    )  # fmt: skip

    __array_ufunc__ = None  # NumPy must leave `array * tensor` to the tensor

    if TYPE_CHECKING:  # `methods` attaches the operations after import

        def _binary(self, other: Tensor | complex, /) -> Tensor: ...

        T: Tensor
        __add__ = __sub__ = __mul__ = __matmul__ = __gt__ = __radd__ = __rsub__ = __rmul__ = _binary

        def __getitem__(self, key: Any) -> Tensor: ...
        def __getattr__(self, name: str) -> Callable[..., Tensor]: ...

    def __init__(self, storage: Storage, layout: Layout, dtype: DType) -> None:
        if layout.end > storage.nbytes:
            raise ValueError(f"{layout} ends at byte {layout.end} of a storage of {storage.nbytes} bytes")
        self.storage = storage
        self.layout = layout
        self.dtype = dtype
        self.grad: Tensor | None = None
        # The tensor whose storage this one views: shows that memory belongs to a parameter.
        self.base: Tensor | None = None
        self._is_view = False
        # The history of the base when this view of it was made.
        self._viewed: Node | None = None
        self._node: Node | None = None
        self._requires_grad = False

    # Memory

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def strides(self) -> Shape:
        """Steps in elements."""
        return self.layout.strides

    @property
    def offset(self) -> int:
        """Position of the first element in the storage, in bytes."""
        return self.layout.offset

    @property
    def numel(self) -> int:
        return self.layout.numel

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, each index counted once."""
        return self.layout.numel * self.layout.itemsize

    @property
    def device(self) -> str:
        return self.storage.space.name

    @property
    def meta(self) -> Meta:
        return Meta(self.layout.shape, self.dtype, self.device)

    @property
    def _version(self) -> int:
        """Number of in-place operations on the storage."""
        return self.storage.counter[0]

    def data_ptr(self) -> int:
        """Give the address of the first element in its memory space."""
        return int(self.storage.buffer.ctypes.data) + self.layout.offset

    def carriers(self) -> Array:
        """Give the stored elements as an array over device memory; for kernels, which run on the device."""
        return self.storage.window(self.layout, self.dtype)

    def _read(self) -> Array:
        if not self.storage.space.is_host:
            current_stream(self.device).synchronize()
        return self.carriers()

    def host_bits(self) -> Array:
        """Copy the elements to a dense host array, bit for bit, from any device; bfloat16 comes as uint16."""
        return self._read().copy(order="C")

    def numpy(self) -> Array:
        """Copy the elements of a host tensor to an array; gradients must not be recorded, as they are not in hooks."""
        if not self.storage.space.is_host:
            raise DeviceError(f"cannot give a {self.device} tensor to NumPy; use .to('cpu') first")
        if self.requires_grad and is_grad_enabled():
            raise RuntimeError("cannot give a tensor that requires grad to NumPy; use .detach().numpy()")
        if self.dtype.name == "bfloat16":
            raise TypeError("NumPy has no bfloat16; use .astype('float32').numpy() or .host_bits()")
        return self.host_bits()

    def item(self) -> Any:
        """Give the only element as a Python number, from any device."""
        return self._read().item()

    def tolist(self) -> Any:
        return self._read().tolist()

    def __repr__(self) -> str:
        values = np.array2string(self._read(), separator=", ", prefix="tensor(", threshold=50)
        return f"tensor({values}, {self.dtype}, {self.device}{', requires_grad' if self.requires_grad else ''})"

    # Place in the graph

    @property
    def node(self) -> Node | None:
        """The node that a gradient of this tensor goes to; None if it requires none.

        Raises:
            InplaceError: an in-place operation has since replaced the history of the tensor that this one views.
        """
        if self._is_view and self.base is not None and self.base._node is not self._viewed:
            raise InplaceError("a view is being used after an in-place operation on the viewed tensor; view it again")
        return AccumulateGrad(self) if self._node is None and self._requires_grad else self._node

    @property
    def grad_fn(self) -> Node | None:
        """The node that computed this tensor; None for a leaf."""
        return None if self.is_leaf else self._node

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation computed this tensor."""
        return self._node is None or isinstance(self._node, AccumulateGrad)

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad or self._node is not None

    def requires_grad_(self, mode: bool = True) -> Tensor:
        """Have backward accumulate a gradient in this leaf, or not."""
        if not self.is_leaf:
            raise RuntimeError("only the requires_grad of a leaf can be set; use detach() to cut the graph")
        if mode and not self.dtype.is_differentiable:
            raise RuntimeError(f"only floating point tensors can require gradients, got {self.dtype}")
        self._requires_grad = mode
        return self

    def detach(self) -> Tensor:
        """Give a tensor over the same memory, sharing its version, without history.

        Its `base` names the viewed tensor only if that is a leaf: a detached loss must not keep its graph alive.
        """
        detached = self.alias(None)
        owner = self if self.base is None else self.base
        detached.base = owner if owner.is_leaf else None
        return detached

    def version_probe(self) -> Tensor:
        """Give an empty tensor that shares the version of this memory without keeping the memory."""
        storage = Storage(np.empty(0, np.uint8), self.storage.space, self.storage.counter)
        return Tensor(storage, Layout((0,), (1,), 0, self.dtype.itemsize), self.dtype)

    def alias(self, node: Node | None) -> Tensor:
        """Give a new tensor over the same memory whose gradient goes to `node`."""
        other = Tensor(self.storage, self.layout, self.dtype)
        other._node, other._is_view = node, self._is_view
        return other

    def view_of(self, layout: Layout) -> Tensor:
        """Give a view without history."""
        view = Tensor(self.storage, layout, self.dtype)
        owner = self if self.base is None else self.base
        view._is_view = True
        if is_grad_enabled() or owner.is_leaf:
            view.base, view._viewed = owner, owner._node
        return view


class AccumulateGrad(Node):
    """The end of the graph at a leaf; nodes of one leaf count as one."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__(())
        self.variable, self.key = variable, id(variable)
        self.sequence = -1  # before all others, whenever it was made


class Parameter(Tensor):
    """A leaf that a module trains; shares the memory of the tensor it is made of."""

    __slots__ = ()

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.storage, data.layout, data.dtype)
        self.requires_grad_(requires_grad)
