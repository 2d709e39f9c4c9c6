"""Blocks of a model that a framework computes again in backward."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

CHECKPOINTED = "checkpointed"

ALREADY = "checkpoints already"
"""Why a block is left alone that somebody else has taken care of."""


@dataclass(slots=True)
class Region:
    """A block of a model, as those see it who may compute it again. Changed by the thread that calls the block.

    Args:
        name: of the module.
        backend: of the module, one that :class:`SupportsCheckpoints`.
        refused: why blocks of the same model are not computed again, by the classes of the modules inside.
        fate: its treatment in the plan of the step, if its refusal is empty.
        refusal: why it is not computed again; empty if it is; None before its first call.
        saved_bytes: bytes that it saves beside its weights where it is not computed again.
    """

    name: str
    backend: Any = None
    refused: dict[Hashable, str] = field(default_factory=dict)
    fate: str = CHECKPOINTED
    refusal: str | None = None
    saved_bytes: int = 0

    def judged(self, refusal: str, saved_bytes: int = 0) -> None:
        """Note the result of the proof."""
        self.refusal, self.saved_bytes = refusal, saved_bytes

    def planned(self, fate: str) -> None:
        """Note its treatment in the plan of the next step."""
        self.fate = fate

    @property
    def treatment(self) -> str:
        """What became of it, in words."""
        words = {None: "not called yet", "": self.fate, ALREADY: f"left alone: the model {ALREADY}"}
        return words.get(self.refusal, f"not repeated, since each {self.refusal}")


class Repeats(Protocol):
    """The part of a framework in calls that are computed again.

    Args:
        tensor: its type.
        constants: types of arguments that nobody changes, beside those of Python.
        notes: attributes of every module, in which the framework keeps its own bookkeeping, and no modules.
        source: name of the Python module of its function.
        trained: attribute of a tensor that tells whether it gets a gradient, in either sense.
    """

    tensor: type
    constants: tuple[type, ...]
    notes: frozenset[str]
    source: str
    trained: str

    def is_checkpointed(self) -> bool:
        """Return whether somebody else computes again, in backward, the present work of this thread."""

    def repeat(self, again: Any, tensors: list[Any]) -> Any:
        """Call a function on tensors, so that backward calls it again."""

    def is_buffer(self, value: Any) -> bool:
        """Return whether a parameter or buffer of a module is a tensor that its calls may write."""

    def version(self, weight: Any) -> Hashable:
        """Return a key that changes with a weight or buffer: steps of optimizers may raise no version of it."""

    def digest(self, value: Any) -> Hashable:
        """Return a key of the bits of a tensor, or of the numbers that a generator will draw; None for all else."""

    def numbers(self, tensors: list[Any]) -> Callable[[], AbstractContextManager[None]]:
        """Return what sets back all random numbers that its function does on devices of tensors, for a block."""


@runtime_checkable
class SupportsCheckpoints(Protocol):
    """A backend whose framework computes modules again in backward, so that hooks around see their inputs alone.

    Its :meth:`Backend.wrap_forward` takes a function that returns a :class:`Region`, too: each call of the module is
    computed again in backward, unless its first call has shown that it cannot be, which is noted in the region.
    """

    repeats: Repeats
