"""What is trained, in both frameworks. Everything is seeded: a step sees the same numbers in every process."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.models.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One training: network, data and optimizer. Each network uses the sizes that concern it.

    Args:
        framework: ``"torch"`` or ``"paddle"``.
        network: ``"gpt"``, which learns bytes of text, or ``"resnet"``, which learns handwritten digits.
        batch: examples of a step.
        rate: of learning.
        optimizer: ``"adam"`` or ``"adamw"``; in Paddle also ``"momentum"``.
        depth: blocks; of a residual network, in each stage.
        width: of the GPT, or channels of the residual network.
        heads: of attention; ``width`` is divisible by it.
        context: bytes of text in an example.
        vocabulary: tokens that there are; one for each byte of text.
        dropout: of the GPT, as a fraction.
        eager: whether its attention is written out, as it is in Paddle, and keeps its probabilities for backward.
        stages: of the residual network; each but the first halves height and width.
        scale: side of the square that a pixel becomes.
        recompute: whether the activations of blocks are computed again in backward.
        dtype: of weights and activations.
        held_out: fraction of the data, the last of it, that is evaluated on and not learnt.
        seed: of the weights.
        threads: for computing; None for what the framework chooses.
    """

    framework: str
    network: str
    batch: int
    rate: float
    optimizer: str = "adamw"
    depth: int
    width: int
    heads: int = 1
    context: int = 0
    vocabulary: int = 256
    dropout: float = 0.0
    eager: bool = False
    stages: int = 1
    scale: int = 4
    recompute: bool = False
    dtype: str = "float32"
    held_out: float = 0.0
    seed: int = 0
    threads: int | None = None


def build(model: Model) -> "Training":
    """Return the training; imports its framework, and no other."""
    training: Training = import_module(f"benchmarks.models.{model.framework}").Training(model)
    return training
