"""One rule, and readers of settings from a node of PyTorch's graph."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

Settings = Callable[[Any, int], tuple[Hashable, ...] | None]
"""From a node and the number of one of its outputs to the settings that the operation ran with; None where the node
does not tell them."""


class Input(NamedTuple):
    """One operand of an operation.

    Args:
        saved: the name under which the node saves it; empty if it does not.
        optional: whether the operation may have been given None for it.
        place: its place, where the node saves several tensors under that name, as functions in Python do under
            ``"tensors"``.
    """

    saved: str = ""
    optional: bool = False
    place: int | None = None


def no_settings(node: Any, output: int) -> tuple[Hashable, ...]:
    """Return no settings."""
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The rule to run one operation again, if a node of the graph shows its operands.

    Args:
        name: in :class:`~tensorstash.policies.recompute.Recompute`.
        node: the name of the node.
        inputs: the operands, in the order of the node's edges.
        run: takes the settings, then the operands, and returns the first output in fresh memory.
        settings: read from the node; equal settings have to mean the same operation.
        is_view: whether ``run`` returns a view of its first operand, which costs nothing.
    """

    name: str
    node: str
    inputs: tuple[Input, ...]
    run: Callable[..., Tensor]
    settings: Settings = no_settings
    is_view: bool = False


def saved(*names: str) -> tuple[Input, ...]:
    """Return operands that the node may have saved under these names; none under an empty one."""
    return tuple(map(Input, names))


def attributes(*names: str) -> Settings:
    """Return a function that reads settings that the node has under these names."""

    def read(node: Any, output: int) -> tuple[Hashable, ...]:
        return tuple(_signed(getattr(node, f"_saved_{name}")) for name in names)

    return read


def _signed(value: Any) -> Any:
    """Return a setting with the sign that nodes leave out of dimensions.

    >>> _signed(2**64 - 1), _signed(3), _signed(0.5)
    (-1, 3, 0.5)
    """
    return value - 2**64 if type(value) is int and value >= 2**63 else value


def made_shape(node: Any, output: int) -> tuple[Hashable, ...]:
    """Return the shape of an output."""
    return (tuple(node._input_metadata[output].shape),)


def made_dtype(node: Any, output: int) -> tuple[Hashable, ...]:
    """Return the element type of an output."""
    return (node._input_metadata[output].dtype,)
