"""Modules that a framework computes again in backward, by a function of its own."""

from typing import Any, Protocol, runtime_checkable

CHECKPOINTED = "checkpointed"

ALREADY = "checkpoints already"
"""Why a block is left alone that somebody else has taken care of."""

_MEASURED = 3


class Region:
    """A block of a model, as those see it who may compute it again. Changed by the thread that calls the block.

    Args:
        name: of the module.
        backend: of the module.
    """

    __slots__ = ("_measured", "backend", "fate", "name", "refusal", "saved_bytes", "seconds", "written")

    def __init__(self, name: str, backend: Any = None) -> None:
        self.name, self.backend = name, backend
        self.fate = CHECKPOINTED
        """Its treatment in the plan of the step, unless it is refused."""
        self.refusal: str | None = None
        """Why it is not computed again; empty if it is; None before its first call."""
        self.written: tuple[str, ...] = ()
        """Names of its buffers that a call writes, which computing it again must not."""
        self.saved_bytes = 0
        """Bytes that it saves beside its arguments and weights where it is not computed again."""
        self.seconds = 0.0
        """Duration of the shortest of its measured calls, on its device."""
        self._measured = 0

    @property
    def is_wanted(self) -> bool:
        """Whether the plan of the step computes it again."""
        return self.fate == CHECKPOINTED

    @property
    def is_repeated(self) -> bool:
        """Whether it was proved that the block can be computed again."""
        return self.refusal == ""

    @property
    def is_measured(self) -> bool:
        """Whether its next call is measured, which makes the program wait for a device: its first few are."""
        return self._measured < _MEASURED

    def judged(self, refusal: str, written: tuple[str, ...] = (), saved_bytes: int = 0) -> None:
        """Note the result of the proof."""
        self.refusal, self.written, self.saved_bytes = refusal, written, saved_bytes

    def planned(self, fate: str) -> None:
        """Note its treatment in the plan of the next step."""
        self.fate = fate

    def took(self, seconds: float) -> None:
        """Note how long a measured call took."""
        self.seconds = min(self.seconds or seconds, seconds)
        self._measured += 1


@runtime_checkable
class SupportsCheckpoints(Protocol):
    """A backend whose framework computes modules again in backward, so that hooks around see their inputs alone.

    Its :meth:`Backend.wrap_forward` takes a function that returns a :class:`Region`, too: each call of the module is
    computed again in backward. The first call proves the module: one that cannot be repeated to the bit is noted in the
    region and called as ever.
    """

    repeats: Any
    """The part of the framework, a :class:`~tensorstash.backends.repeat.Repeats`."""

    def is_checkpointed(self) -> bool:
        """Return whether somebody else computes again, in backward, the present work of this thread."""
