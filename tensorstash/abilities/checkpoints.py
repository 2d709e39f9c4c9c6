"""Modules that a framework computes again in backward, by a function of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

CHECKPOINTED = "checkpointed"

ALREADY = "checkpoints already"
"""Why a block is left alone that somebody else has taken care of."""


@dataclass(slots=True)
class Region:
    """A block of a model, as those see it who may compute it again. Changed by the thread that calls the block.

    Args:
        name: of the module.
        backend: of the module, one that :class:`SupportsCheckpoints`.
        fate: its treatment in the plan of the step, if its refusal is empty.
        refusal: why it is not computed again; empty if it is; None before its first call.
        writes: whether its calls write its buffers, which computing it again must not.
        saved_bytes: bytes that it saves beside its arguments and weights where it is not computed again.
    """

    name: str
    backend: Any = None
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


class Repeats(ABC):
    """The part of a framework in calls that are computed again. All else is the same for every framework."""

    tensor: ClassVar[type]
    generator: ClassVar[type]
    """Of the random numbers that a module may hold."""
    constants: ClassVar[tuple[type, ...]]
    """Types of arguments that nobody changes, beside those of Python."""
    notes: ClassVar[frozenset[str]]
    """Attributes of every module, in which the framework keeps its own bookkeeping."""
    inside: ClassVar[str]
    """That of the modules inside."""
    reenters: ClassVar[bool]
    """Whether its function runs outside of the graph: it returns tensors, and sets Python's random numbers back."""
    source: ClassVar[str]
    """Name of the Python module of that function."""

    @abstractmethod
    def is_checkpointed(self) -> bool:
        """Return whether somebody else computes again, in backward, the present work of this thread."""

    @abstractmethod
    def repeat(self, again: Callable[..., Any], module: Any, tensors: list[Any]) -> Any:
        """Call a module on tensors, so that backward calls it again."""

    @abstractmethod
    def is_buffer(self, value: Any) -> bool:
        """Return whether a parameter, buffer or None that a module holds is a tensor that its calls may write."""

    @abstractmethod
    def copied(self, value: Any) -> Any:
        """Return a copy of a tensor, no leaf, that requires grad as the tensor does; or of a generator."""

    @abstractmethod
    def digest(self, value: Any) -> Hashable:
        """Return a key of the bits of a tensor, or of the numbers that a generator will draw."""

    @abstractmethod
    def same_numbers(self, tensors: list[Any]) -> AbstractContextManager[None]:
        """Set the framework's random numbers back at the end, on the devices of tensors, too."""


@runtime_checkable
class SupportsCheckpoints(Protocol):
    """A backend whose framework computes modules again in backward, so that hooks around see their inputs alone.

    Its :meth:`Backend.wrap_forward` takes a function that returns a :class:`Region`, too: each call of the module is
    computed again in backward. The first call proves the module: one that cannot be repeated to the bit is noted in the
    region and called as ever.
    """

    repeats: Repeats
