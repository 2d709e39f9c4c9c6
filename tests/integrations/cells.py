"""The matrix of trainers: one cell is one way to train."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

KINDS = "transformers", "trl", "accelerate", "lightning"


@dataclass(frozen=True)
class Cell:
    """One way to train.

    Args:
        trainer: its name, a key of :data:`TRAINERS`.
        precision: ``"fp32"``, or ``"bf16"`` by the trainer's own autocast.
        where: the policy is put ``"before"`` or ``"after"`` the trainer takes the model, by ``"callback"``, or not at
            all: ``"plain"``.
        lora: train PEFT's adapters in place of the weights.
        checkpointing: as the trainer spells it.
        accumulation: batches per step.
    """

    trainer: str
    precision: str
    where: str
    lora: bool
    checkpointing: bool
    accumulation: int

    def __str__(self) -> str:
        parts = [self.trainer, self.precision, self.where, *(["lora"] if self.lora else [])]
        parts += [*(["checkpointing"] if self.checkpointing else []), f"accumulate {self.accumulation}"]
        return ", ".join(parts)


def every_cell() -> Iterator[Cell]:
    """Yield all cells of all trainers."""
    places, yes_or_no = ("before", "after", "callback"), (False, True)
    for values in product(KINDS, ("fp32", "bf16"), places, yes_or_no, yes_or_no, (1, 2)):
        if values[:1] + values[2:3] != ("accelerate", "callback"):  # which has none
            yield Cell(*values)
