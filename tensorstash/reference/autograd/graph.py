"""The recorded graph: nodes, and the edges along which gradients flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from tensorstash.reference.autograd.modes import next_sequence
from tensorstash.reference.storage.dtypes import DType
from tensorstash.reference.storage.layout import Shape

T = TypeVar("T")


class Meta(NamedTuple):
    """Shape and type of a gradient; all that is known of a tensor whose elements are not saved."""

    shape: Shape
    dtype: DType
    device: str


class Edge(NamedTuple, Generic[T]):
    """The edge of one tensor's gradient: that `output` of `node`."""

    node: Node[T]
    output: int


class Node(Generic[T]):
    """One recorded operation; owns its saved tensors and, through its edges, all that was recorded before it.

    A chain of any length is freed without deep recursion: every link is an object that CPython's deferred
    deallocation ("trashcan") covers.

    Args:
        edges: one per differentiable input, None where no gradient is wanted.
        outputs: one per output.
    """

    __slots__ = ("__weakref__", "edges", "outputs", "sequence")

    def __init__(self, edges: Sequence[Edge[T] | None], outputs: Sequence[Meta]) -> None:
        self.edges = tuple(edges)
        self.outputs = tuple(outputs)
        self.sequence = next_sequence()

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def key(self) -> int:
        """The key of a node in the backward walk."""
        return id(self)

    def apply(self, gradients: Sequence[T | None]) -> Sequence[T | None]:
        """Give the gradient for each edge, given those of the outputs; None stands for zero."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the saved tensors; a later `apply` that needs them raises."""
