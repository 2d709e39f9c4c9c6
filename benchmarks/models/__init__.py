"""What is trained, in both frameworks. Everything is seeded: a step sees the same numbers in every process."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One training: network, data and optimizer. Each network uses the sizes that concern it."""

    framework: str  # "torch" or "paddle"
    network: str  # "gpt", which learns bytes of text, or "resnet", which learns handwritten digits
    batch: int  # examples of a step
    rate: float  # of learning
    optimizer: str = "AdamW"  # or another of the framework
    depth: int  # blocks
    width: int  # of the GPT, or channels of the residual network
    heads: int = 1  # of attention; width is divisible by it
    context: int = 0  # bytes of text in an example
    vocabulary: int = 256  # tokens that there are; one for each byte of text
    scale: int = 4  # side of the square that a pixel becomes
    recompute: bool = False  # the activations of blocks are computed again in backward
    held_out: float = 0.0  # fraction of the data, the last of it, that is evaluated on and not learnt
    seed: int = 0  # of the weights


def tiny(model: Model) -> Model:
    """Return the same in sizes that show nothing but that it runs."""
    batch, width = (4, 64) if model.network == "gpt" else (16, 8)
    return replace(model, batch=batch, depth=2, width=width, heads=4, context=64, scale=2)
