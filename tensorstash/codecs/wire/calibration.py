"""What a codec offers that stands for others until a session has seen what one step saves."""

from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

from tensorstash.host.arrays import Array
from tensorstash.protocols import Codec
from tensorstash.spec import TensorSpec

K = TypeVar("K", bound=Hashable)

Measured = tuple[float, ...]
"""What a codec finds out about one tensor; numbers that only it understands, of which means can be taken."""


@runtime_checkable
class SupportsCalibration(Protocol):
    """A codec, frozen as all are, that stands for others: a session chooses among them after its first step."""

    def measure(self, data: Array, spec: TensorSpec, /) -> Measured:
        """Return what the choice depends on; ``data`` as for :meth:`Codec.encode`."""
        ...

    def choose(self, measured: Mapping[K, tuple[int, Measured]], /) -> Mapping[K, Codec]:
        """Return the codec for each kind of tensor; pure, so that equal measurements lead to equal choices.

        Args:
            measured: by kind, the number of elements that one step saves, and the mean of what was measured.
        """
        ...
