"""The test-side twin of a backend: operations of a framework that suites need."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from tensorstash.abilities import Backend
from tensorstash.backends import backend_named
from tensorstash.host.arrays import Array
from tensorstash.spec import ALIGNMENT

Tensor = Any
"""A tensor of the lab's framework."""

Model = Any
"""A module of the lab's framework."""

Sink = Callable[[Sequence[Tensor]], None]
"""Looks at saved tensors as backward gets them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about a tensor that must come back besides its bits.

    Args:
        shape: sizes of the dimensions.
        strides: in elements.
        dtype: the element type's name.
        device: the framework's name of the place.
        alignment: address of the first element modulo 64, in bytes; 0 for an empty tensor.
        offset: distance from the start of the storage, in bytes, where the framework keeps it.
        flags: lazy flags that are set, such as ``"conj"``.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    alignment: int
    offset: int = 0
    flags: frozenset[str] = frozenset()


class Lab(ABC):
    """Operations of one framework that a suite needs beside those of its tensors.

    Tensors record gradients as the framework does, and share some operations: ``+``, ``*``, ``@``, slices, rows by an
    ``int64`` tensor, ``T``, ``exp``, ``tanh``, ``sum``, ``softmax(axis)``, ``expand`` and ``reshape``.

    Attributes:
        name: the backend's registered name.
        framework: the module with ``grad``, ``no_grad`` and ``set_grad_enabled``.
        devices: places to run on; host memory first. Tensors are made on the first.
        dtypes: element types that tensors can be built of.
        float_dtypes: those of them that gradients of products can be computed in.
        flags: lazy flags that tensors can carry, for :meth:`flagged`.
        reverses: whether views can have negative strides.
    """

    name: ClassVar[str]
    framework: ClassVar[Any]
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    float_dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
    flags: tuple[str, ...] = ()
    reverses: bool = True

    @property
    def backend(self) -> Backend[Tensor]:
        """The backend under test."""
        return backend_named(self.name)

    @property
    def device(self) -> str:
        """Where tensors are made."""
        return self.devices[0]

    def on(self, device: str) -> Self:
        """Return a lab of one of the devices."""
        lab = copy(self)
        lab.devices = (device,)
        return lab

    # Building

    @abstractmethod
    def tensor(self, bits: Array, dtype: str | None = None, *, requires_grad: bool = False) -> Tensor:
        """Return a C-contiguous leaf with a copy of ``bits``.

        Args:
            bits: elements as carrier bits (``bfloat16`` as ``uint16``).
            dtype: the element type's name; by default the one of ``bits``.
            requires_grad: whether backward accumulates a gradient in it.
        """

    @abstractmethod
    def parameter(self, values: Array, *, trainable: bool = True) -> Tensor:
        """Return a parameter, as a module would hold it."""

    @abstractmethod
    def model(self) -> Model:
        """Return a module of 8 inputs and 4 outputs with a submodule ``first`` and at least two parameters."""

    def state(self, model: Model) -> dict[str, Array]:
        """Return the names and bits of the model's state dictionary."""
        return {name: self.bits(tensor) for name, tensor in model.state_dict().items()}

    def unstashable(self) -> Mapping[str, Tensor]:
        """Return tensors of kinds that cannot be rebuilt exactly and so must be kept, by name of the kind."""
        return {}

    # Looking

    @abstractmethod
    def bits(self, tensor: Tensor) -> Array:
        """Return a C-contiguous copy of the elements as carrier bits, lazy flags left unresolved."""

    @abstractmethod
    def layout(self, tensor: Tensor) -> Layout:
        """Return the properties that must come back besides the bits."""

    def _layout(self, tensor: Tensor, strides: Sequence[int], device: object, **more: Any) -> Layout:
        alignment = 0 if 0 in tensor.shape else self.address(tensor) % ALIGNMENT
        dtype = str(tensor.dtype).rpartition(".")[2]
        return Layout(tuple(tensor.shape), tuple(strides), dtype, str(device), alignment, **more)

    def address(self, tensor: Tensor) -> int:
        """Return the address of the first element in its device's memory."""
        return int(tensor.data_ptr())

    def requires_grad(self, tensor: Tensor) -> bool:
        """Whether the tensor takes part in differentiation."""
        return bool(tensor.requires_grad)

    # Operations

    @abstractmethod
    def as_strided(self, tensor: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        """Return a view of the same storage; strides and offset in elements."""

    def flagged(self, tensor: Tensor, flag: str) -> Tensor:
        """Return a view of ``tensor`` with a lazy flag of :attr:`flags` set."""
        raise NotImplementedError(f"{self.name} has no flag {flag!r}")

    def relu(self, tensor: Tensor) -> Tensor:
        return tensor.relu()

    @abstractmethod
    def observe(self, tensor: Tensor, saved: Sequence[Tensor], sink: Sink) -> Tensor:
        """Return a copy of ``tensor`` by a custom operation that saves ``saved`` for its backward.

        Its backward gives the unpacked tensor to ``sink`` and passes the gradient on to ``tensor``. The graph owns
        ``sink``.
        """

    # Randomness

    def seed(self, seed: int) -> None:
        """Seed the random state that user programs draw from."""
        np.random.seed(seed)

    def draw(self) -> float:
        """Draw a number from that random state."""
        return float(np.random.random())

    # Gradients

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        loss.backward(retain_graph=retain_graph)

    def grad(self, output: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor]:
        """Return the gradients of a scalar with respect to ``inputs`` without accumulating them."""
        return list(self.framework.grad(output, list(inputs), create_graph=create_graph))

    def gradient(self, leaf: Tensor) -> Array:
        """Return the bits of the accumulated gradient."""
        return self.bits(leaf.grad)

    def descend(self, leaf: Tensor, rate: float) -> None:
        """Subtract ``rate`` times the gradient in place, as an optimizer would, and clear the gradient."""
        with self.framework.no_grad():
            leaf.add_(leaf.grad * -rate)
        leaf.grad = None

    # Writing in place

    def add_(self, tensor: Tensor, value: float) -> None:
        """Add in place, as a program would, bumping the version; without recording for a leaf that requires grad."""
        with self.framework.set_grad_enabled(not tensor.is_leaf):
            tensor.add_(value)

    @abstractmethod
    def write_unversioned(self, tensor: Tensor, value: float) -> None:
        """Overwrite every element through a door that bumps no version, as fused optimizers do."""
