"""One rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from paddle import Tensor

Like = Literal["same", "type", "free"]
"""Properties that an operand shares with the output: shape and element type, the element type alone, nothing.

The graph of Paddle shows neither on the way, and a reshape, or a cast, has to be told."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The rule to run one operation of Paddle again.

    Args:
        name: in :class:`~tensorstash.policies.recompute.Recompute`.
        node: the name of the node that the operation leaves in the graph.
        operands: in the order of the node's edges; all of them have to be known.
        run: takes the settings by position, then the operands, and returns one output in fresh memory.
        has_settings: whether the operation has settings, which :mod:`tensorstash.backends.paddle.recipes.settings`
            notes.
        mask: whether the last operand is a mask that the operation itself has made and saved.
        is_cast: whether ``run`` takes an element type before the operand, which is the output's.
        is_view: whether all it does is give the elements another shape, and ``run`` takes that before the operand.
    """

    name: str
    node: str
    operands: tuple[Like, ...]
    run: Callable[..., Tensor]
    has_settings: bool = False
    mask: bool = False
    is_cast: bool = False
    is_view: bool = False
