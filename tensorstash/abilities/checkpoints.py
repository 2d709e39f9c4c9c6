"""Blocks of a model that a framework computes again in backward."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

CHECKPOINTED = "checkpointed"

ALREADY = "checkpoints already"
"""Why a block is left alone that somebody else has taken care of."""

NOT_REPEATED = "not repeated"


@dataclass(slots=True)
class Region:
    """A block of a model, as those see it who may compute it again. Changed by the thread that calls the block.

    Args:
        name: of the module.
        backend: of the module, one that :class:`SupportsCheckpoints`.
        refused: why blocks of the same model are not computed again, by the classes of the modules inside.
        fate: its treatment in the plan of the step, if its refusal is empty.
        refusal: why it is not computed again; empty if it is; None before its first call.
        writes: whether its calls write its buffers, which computing it again must not.
        saved_bytes: bytes that it saves beside its arguments and weights where it is not computed again.
    """

    name: str
    backend: Any = None
    refused: dict[Hashable, str] = field(default_factory=dict)
    fate: str = CHECKPOINTED
    refusal: str | None = None
    writes: bool = False
    saved_bytes: int = 0

    def judged(self, refusal: str, writes: bool = False, saved_bytes: int = 0) -> None:
        """Note the result of the proof."""
        self.refusal, self.writes, self.saved_bytes = refusal, writes, saved_bytes

    def planned(self, fate: str) -> None:
        """Note its treatment in the plan of the next step."""
        self.fate = fate

    @property
    def is_repeated(self) -> bool:
        """Whether it has been proved that it can be computed again."""
        return self.refusal == ""

    @property
    def treatment(self) -> str:
        """What became of it, in words."""
        if self.refusal is None:
            return "not called yet"
        if self.refusal == ALREADY:
            return f"left alone: the model {ALREADY}"
        return f"{NOT_REPEATED}, since each {self.refusal}" if self.refusal else self.fate


@runtime_checkable
class SupportsCheckpoints(Protocol):
    """A backend whose framework computes modules again in backward, so that hooks around see their inputs alone.

    Its :meth:`Backend.wrap_forward` takes a function that returns a :class:`Region`, too: each call of the module is
    computed again in backward, unless its first call has shown that it cannot be, which is noted in the region.
    """

    def is_checkpointed(self) -> bool:
        """Return whether somebody else computes again, in backward, the present work of this thread."""
