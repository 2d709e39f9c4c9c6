"""Optional knowledge of a framework's graph and memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

from tensorstash.host.arrays import Array
from tensorstash.protocols import Demand
from tensorstash.spec import TensorSpec

T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class SupportsMemoryUse(Protocol):
    """A backend whose framework tells how much memory of a device is free."""

    def free_bytes(self, device: str, /) -> int:
        """Return how many bytes tensors may still take; raises BackendError where it is not told of that device."""


@runtime_checkable
class SupportsImagining(Protocol):
    """A backend that runs models on tensors that have shapes and no memory."""

    def can_imagine(self, model: Any, /) -> bool:
        """Whether shapes tell all that a model saves."""

    def imagining(
        self, model: Any, inputs: tuple[Any, ...], named: Mapping[str, Any], /
    ) -> AbstractContextManager[tuple[Callable[[], Any], Callable[[Any], bool]]]:
        """Return a call of a model on imagined weights and arguments, and a test whether a tensor is a weight.

        The model stays as it is.

        Raises:
            BackendError: when called: the model does not run on such tensors.
        """

    def outline(self, tensor: Any, /) -> tuple[tuple[int, ...], str, str]:
        """Return the shape, the dtype and the device of an imagined tensor."""


@runtime_checkable
class SupportsDemand(Protocol[T_contra]):
    """A backend whose framework tells inside ``pack`` which operation saves."""

    def demand(self, tensor: T_contra, /) -> Demand:
        """Return how exactly the operation that saves the tensor being packed has to get it back."""


class Readers(Protocol[T_contra]):
    """Finds in the graph, while a thread records it, which operation has saved which tensor; keeps nothing alive."""

    def visit(self, tensor: T_contra, /) -> Iterable[tuple[Any, Demand]]:
        """Return handles on the way to a tensor that is being packed, with the demands of their readers.

        Each is returned once; those that ``tensor`` itself was computed from, perhaps more often.
        """


@runtime_checkable
class SupportsSharedMemory(Protocol[T_co]):
    """A backend that puts tensors of the host side by side into one memory, as views of one tensor are."""

    def place(self, data: Array, spec: TensorSpec, memory: Array, start: int, /) -> T_co:
        """Return the tensor of :meth:`Backend.from_host`, but in ``memory`` from a byte on.

        The tensor keeps the memory alive, and has an in-place version of its own.
        """

    def relaid(self, tensor: Any, spec: TensorSpec, wanted: TensorSpec, /) -> T_co:
        """Return a detached tensor of ``wanted`` in the memory of one of ``spec``, a layout of the same block."""


@runtime_checkable
class SupportsGraph(Protocol[T_contra]):
    """A backend whose framework shows its graph, and tells how many objects hold a memory.

    Under one that does not, the stashed bytes are copied before ``pack`` returns.
    """

    def holders(self, tensors: Sequence[T_contra], /) -> list[int]:
        """Return how many objects hold each tensor's memory: itself, aliases and views of it, and whatever else does.

        Memory that others can use without holding it has a :meth:`Backend.keep_reason`.
        """

    def is_there(self, tensor: T_contra, spec: TensorSpec, /) -> bool:
        """Whether the tensor has its memory now; whoever holds it may have freed it for a while."""

    def keeps_graph(self) -> bool:
        """Whether the saved tensor that is asked for on this thread may be asked for again."""

    def may_write(self) -> bool:
        """Whether the operation whose backward asks for a saved tensor on this thread may write into it."""

    def compiled_graph(self) -> int | None:
        """Return a number of the compiled graph whose backward runs on this thread; None if none does."""

    def is_compiling(self) -> bool:
        """Return whether this thread runs inside of a function that the compiler was given."""

    def readers(self, is_ours: Callable[[object], bool], /) -> Readers[T_contra]:
        """Return the search for readers of the handles that ``is_ours`` tells, in the graph recorded from now on."""

    def running_demand(self, handle: object, /) -> Demand | None:
        """Return the demand of the operation whose backward runs on this thread; None if none runs."""
